"""A limit of time does not charge what other programs took of the processors, and ends what stands still."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from types import SimpleNamespace

import nbformat
import pytest

from autograder import exercise
from autograder.bank import find
from autograder.classroom import limited, trying
from autograder.classroom.verdicts import A_PERSON, Asked, Judging
from autograder.inside import own_time
from autograder.inside.own_time import OwnTime
from autograder.referee import watchdog
from autograder.referee.referee import Patience, Referee
from autograder.referee.room import TooBusy, Worker
from autograder.referee.submission import Cell, Submission
from course_lib.places import RELEASES

WORK = exercise.get("roofline.work")  # one of plain data: its calls take milliseconds
RIGHT = find("roofline.work/right/kernels_composed").source
SPINS = "import time\nbegan = time.process_time()\nwhile time.process_time() - began < {}:\n    pass\n"
# it has a processor for a tenth of the time
DRIPS = "import time\nwhile True:\n    began = time.process_time()\n    while time.process_time() - began < 0.05:\n"
DRIPS += "        pass\n    time.sleep(0.45)\n"
needs_bubblewrap = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")


def before_it_answers(work: str) -> str:
    """Once."""
    inside = "".join(f"        {line}\n" for line in work.splitlines())
    once = f"    if not done:\n        done.append(1)\n{inside}"
    return f"{RIGHT}\n_right, done = {WORK.entry}, []\ndef {WORK.entry}(*args):\n{once}    return _right(*args)\n"


# ------------------------------------------------------------------------------------------- what is charged


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0, ran=7.0)
    monkeypatch.setattr(own_time, "monotonic", lambda: clock.now)
    return clock


def ends(clock, limit: OwnTime, share) -> float:
    """After how many seconds the limit is over, for processes with this share of a processor at each time."""
    began = clock.now
    while (left := limit.left()) > 0:
        clock.ran += share(clock.now - began) * left
        clock.now += left
    return clock.now - began


@pytest.mark.parametrize(
    ("share", "after"),
    [
        pytest.param(lambda t: 1.0, 30.0, id="an endless loop, alone"),
        pytest.param(lambda t: 0.0, 30.0, id="a deadlock"),
        pytest.param(lambda t: 0.25, 120.0, id="an endless loop, three others beside it"),
        pytest.param(lambda t: 16.0, 30.0, id="sixteen processors are charged as one"),
        pytest.param(lambda t: 0.5 if t < 6.0 else 0.0, 33.0, id="it works for six seconds, and then stands still"),
        pytest.param(lambda t: 0.001, 30.0, id="a wait that asks now and then"),
    ],
)
def test_working_is_charged_by_the_processor_and_standing_still_by_the_clock(share, after, clock):
    assert ends(clock, OwnTime(30.0, lambda: clock.ran), share) == pytest.approx(after, abs=0.1)


def test_where_nobody_counts_the_clock_decides(clock):
    assert ends(clock, OwnTime(30.0), lambda t: 0.1) == pytest.approx(30.0, abs=0.01)


def test_by_the_clock_there_is_an_end_too(clock):
    limit = OwnTime(30.0, lambda: clock.ran, most_s=50.0)
    assert ends(clock, limit, lambda t: 0.1) == pytest.approx(50.0, abs=0.01)
    assert limit.charged == pytest.approx(5.0, abs=0.1)
    assert limit.left() == 0


def test_what_is_said_of_a_limit_is_true_by_the_clock_too(clock):
    limit = OwnTime(30.0, lambda: clock.ran)
    clock.now += 30.2
    assert str(limit) == "30 s"
    clock.now += 44.0
    assert str(limit) == "30 s, not counting 44 s without a processor"


# ------------------------------------------------------------------------------------------- the referee's limits


@contextlib.contextmanager
def busy(there: Referee):
    """The submission has a processor for a fifth of the time, as beside many other programs."""
    over = threading.Event()

    def hold_up():
        while not over.is_set():
            for pause, sent in ((0.02, signal.SIGSTOP), (0.08, signal.SIGCONT)):
                time.sleep(pause)
                for pid in list(watchdog.descendants(there.room.process.pid))[1:]:  # without the zygote
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, sent)

    thread = threading.Thread(target=hold_up)
    there.room.ready()
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@needs_bubblewrap
@pytest.mark.parametrize(
    ("source", "patience"),
    [
        pytest.param(SPINS.format(0.6) + RIGHT, (7.0, 20.0), id="a cell"),
        pytest.param(before_it_answers(SPINS.format(1.0)), (20.0, 2.0), id="a call"),
    ],
)
def test_a_machine_that_does_other_things_costs_a_right_answer_nothing(source, patience):
    with Referee(Submission((Cell("mine", source),)), patience=Patience(*patience)) as there, busy(there):
        verdict = there.examine(WORK, seed=1)
    assert verdict.points == WORK.points, verdict


@needs_bubblewrap
def test_a_call_that_is_made_twice_has_the_time_of_two(monkeypatch):
    given, ask = {}, Worker.ask

    def noted(worker, order, descriptors, patience_s, served=()):
        if "programs" in order:
            given[len(order["programs"])] = patience_s
        return ask(worker, order, descriptors, patience_s, served)

    monkeypatch.setattr(Worker, "ask", noted)
    submission = Submission((Cell("mine", find("start.axpy/right/masked").source),))
    with Referee(submission, patience=Patience(20.0, 10.0)) as there:
        verdict = there.examine(exercise.get("start.axpy"), seed=1)
    assert verdict.accepted and given == {1: 10.0, 2: 20.0}


@needs_bubblewrap
@pytest.mark.parametrize("work", [SPINS.format(99), "import time\ntime.sleep(99)"], ids=["works", "sleeps"])
def test_what_does_not_end_is_ended_in_time_all_the_same(work):
    with Referee(Submission((Cell("mine", before_it_answers(work)),)), patience=Patience(20.0, 2.0)) as there:
        there.room.ready()
        began = time.monotonic()
        verdict = there.examine(WORK, seed=1)
    assert "did not end in 2 s" in verdict.cases[0].why
    assert time.monotonic() - began < 30.0


@needs_bubblewrap
def test_who_gets_too_little_of_a_machine_waits_for_a_person_or_for_another_try(tmp_path, capsys):
    release = nbformat.read(RELEASES / "01_roofline/roofline.ipynb", as_version=4)
    submission = Submission((Cell("mine", before_it_answers(DRIPS)),))
    with Judging(submission, release, 1, tmp_path) as judging:
        judging.referee = Referee(submission, patience=Patience(20.0, 20.0, whole_s=4.0)).__enter__()
        verdict = judging.verdict(Asked(WORK.name, speed=False))
    assert (verdict["points"], verdict["waits"]) == (0.0, A_PERSON)
    assert "this submission got 1 s of this machine" in verdict["html"]
    assert not list(tmp_path.glob("*.json")), "grading again would not try again"


def test_a_rehearsal_says_that_the_machine_was_too_busy(monkeypatch):
    def refuses(*_):
        raise TooBusy("in 1920 s this submission got 50 s of this machine")

    release = nbformat.read(RELEASES / "00_start/start.ipynb", as_version=4)
    monkeypatch.setattr(Referee, "__enter__", lambda self: self)
    monkeypatch.setattr(Referee, "__exit__", lambda *_: None)
    monkeypatch.setattr(Referee, "examine", refuses)
    with pytest.raises(trying.CannotTry, match="got 50 s of this machine: other programs had the rest"):
        list(trying.rows(Submission(()), release, unsafe=False))


def test_a_rehearsal_says_that_the_machine_did_not_read_the_notebook(monkeypatch):
    def late(*_):
        raise subprocess.TimeoutExpired("python", 60)

    monkeypatch.setattr(limited, "taken_apart", late)
    with pytest.raises(trying.CannotTry, match="did not read it in 60 s; try again"):
        trying.read(RELEASES / "00_start/start.ipynb")
