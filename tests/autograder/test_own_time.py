"""A limit of time does not charge the lack of a processor, and ends what stands still or sleeps."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from autograder import exercise
from autograder.bank import find
from autograder.classroom import limited, trying
from autograder.classroom.verdicts import A_PERSON, Asked, Judging
from autograder.inside import own_time
from autograder.inside.own_time import OwnTime
from autograder.referee import audit, watchdog
from autograder.referee.referee import Patience, Referee
from autograder.referee.room import Budget, Lost, TooBusy, Worker
from autograder.referee.submission import Cell, Submission
from course_lib import device
from course_lib.places import RELEASES

WORK = exercise.get("roofline.work")  # one of plain data: its calls take milliseconds
RIGHT = find("roofline.work/right/kernels_composed").source
SPINS = "import time\nbegan = time.process_time()\nwhile time.process_time() - began < {}:\n    pass\n"
# it has a processor for a tenth of the time
DRIPS = "import time\nwhile True:\n    began = time.process_time()\n    while time.process_time() - began < 0.05:\n"
DRIPS += "        pass\n    time.sleep(0.45)\n"
needs_bubblewrap = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
needs_the_count = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not count the lack of a processor"
)


def before_it_answers(work: str) -> str:
    """Once."""
    inside = "".join(f"        {line}\n" for line in work.splitlines())
    once = f"    if not done:\n        done.append(1)\n{inside}"
    return f"{RIGHT}\n_right, done = {WORK.entry}, []\ndef {WORK.entry}(*args):\n{once}    return _right(*args)\n"


# ------------------------------------------------------------------------------------------- what is charged


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0, lacked=7.0)
    monkeypatch.setattr(own_time, "monotonic", lambda: clock.now)
    return clock


def ends(clock, limit: OwnTime, share) -> float:
    """After how many seconds the limit is over, where this share of each could have been used and was not."""
    began = clock.now
    while (left := limit.left()) > 0:
        clock.lacked += share(clock.now - began) * left
        clock.now += left
    return clock.now - began


@pytest.mark.parametrize(
    ("share", "after"),
    [
        pytest.param(lambda t: 0.0, 30.0, id="an endless loop alone, a deadlock, a sleep"),
        pytest.param(lambda t: 0.75, 120.0, id="an endless loop, three others beside it"),
        pytest.param(lambda t: 0.5 if t < 6.0 else 0.0, 45.0, id="beside another one at first"),
    ],
)
def test_all_is_charged_that_passes_but_for_the_lack_of_a_processor(share, after, clock):
    assert ends(clock, OwnTime(30.0, lambda: clock.lacked), share) == pytest.approx(after, abs=0.1)


def test_where_nobody_counts_the_clock_decides(clock):
    assert ends(clock, OwnTime(30.0), lambda t: 0.9) == pytest.approx(30.0, abs=0.01)


def test_by_the_clock_there_is_an_end_too(clock):
    limit = OwnTime(30.0, lambda: clock.lacked, most_s=50.0)
    assert ends(clock, limit, lambda t: 0.9) == pytest.approx(50.0, abs=0.01)
    assert limit.charged == pytest.approx(5.0, abs=0.1)
    assert limit.left() == 0


def test_what_is_said_of_a_limit_is_true(clock):
    limit = OwnTime(30.0, lambda: clock.lacked)
    clock.now += 50.2
    assert str(limit) == "30 s"
    clock.now, clock.lacked = clock.now + 60.0, clock.lacked + 44.0
    assert str(limit) == "30 s, not counting 44 s without a processor"


@pytest.mark.parametrize(
    ("used", "lacked"),
    [
        pytest.param({"a": (1.0, 4.0)}, 4.0, id="one that gets a fifth"),
        pytest.param({"a": (0.1, 0.0)}, 0.0, id="one that sleeps and works now and then"),
        pytest.param({"a": (1.0, 4.0), "b": (4.0, 1.0)}, 0.0, id="one of two is always at work"),
        pytest.param({"a": (0.5, 4.0), "b": (0.5, 4.0)}, 4.0, id="two that lack one at the same time"),
        pytest.param({"a": (0.5, 99.0)}, 4.5, id="one that was not seen for a while"),
        pytest.param({"a": (-9.0, -9.0)}, 0.0, id="another one has its number now"),
    ],
)
def test_a_sandbox_lacks_a_processor_where_a_thread_waits_for_one_and_none_has_one(used, lacked, monkeypatch):
    monkeypatch.setattr(watchdog, "descendants", lambda pid: [1])
    monkeypatch.setattr(watchdog, "threads", lambda pid: [*used])
    monkeypatch.setattr(watchdog, "_used", lambda thread: tuple(10.0 + n for n in used[thread]))
    dog = SimpleNamespace(bwrap=0, lacked=0.0, spare=0.0)
    watchdog.Watchdog._count(dog, dict.fromkeys(used, (10.0, 10.0)), 5.0)
    assert dog.lacked == pytest.approx(lacked)


def test_a_wait_that_ends_after_the_next_look_counts_whole_and_a_long_sleep_before_it_does_not(monkeypatch):
    used = iter([(1.0, 0.0), (1.0, 0.08), (1.01, 0.08), (1.01, 40.08)])
    monkeypatch.setattr(watchdog, "descendants", lambda pid: [1])
    monkeypatch.setattr(watchdog, "threads", lambda pid: ["a"])
    monkeypatch.setattr(watchdog, "_used", lambda thread: next(used))
    dog, known = SimpleNamespace(bwrap=0, lacked=0.0, spare=0.0), {"a": (1.0, 0.0)}
    for took, lacked in ((0.05, 0.0), (0.05, 0.08), (60.0, 0.08), (0.05, 0.08 + watchdog.WAIT_S + 0.05)):
        known = watchdog.Watchdog._count(dog, known, took)
        assert dog.lacked == pytest.approx(lacked)


@needs_the_count
def test_this_machine_tells_how_long_a_thread_waited_for_a_processor():
    spin = [sys.executable, "-S", "-c", "while True: pass"]
    with beside(spin, 3) as where, subprocess.Popen(spin, start_new_session=True) as one:
        os.sched_setaffinity(one.pid, where)
        began = time.monotonic()
        time.sleep(1.0)
        ran, lacked = watchdog._used(f"{one.pid}/task/{one.pid}")
        took = time.monotonic() - began
        one.kill()
    assert 2 * ran < lacked and 0.8 * took < ran + lacked < 1.2 * took


# ------------------------------------------------------------------------------------------- the referee's limits


@contextlib.contextmanager
def beside(program: list[str], count: int):
    """So many processes on one processor, and which. Of a session, Linux may make one share."""
    where = {max(os.sched_getaffinity(0))}
    them = [subprocess.Popen(program, start_new_session=True) for _ in range(count)]
    try:
        for one in them:
            os.sched_setaffinity(one.pid, where)
        yield where
    finally:
        for one in them:
            one.kill()
            one.wait()


@contextlib.contextmanager
def busy(there: Referee):
    """The submission has a processor for a fifth of the time, beside four other programs."""
    over = threading.Event()

    def hold_down(where):
        while not over.wait(0.02):
            for pid in list(watchdog.descendants(there.room.process.pid))[1:]:  # without the zygote
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(pid, where)

    there.room.ready()
    with beside([sys.executable, "-S", "-c", "while True: pass"], 4) as where:
        thread = threading.Thread(target=hold_down, args=(where,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@needs_bubblewrap
@needs_the_count
@pytest.mark.parametrize(
    ("source", "patience"),
    [
        pytest.param(SPINS.format(0.6) + RIGHT, (11.0, 20.0), id="a cell"),
        pytest.param(before_it_answers(SPINS.format(1.0)), (20.0, 3.0), id="a call"),
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


def test_two_calls_in_a_row_have_the_time_of_two():
    given, room = [], SimpleNamespace(patience=Patience(20.0, 10.0))

    def go(round_, patience_s):
        given.append((len(round_.calls), patience_s))
        return {"error": "enough"}

    one = exercise.get("start.axpy")
    worker = SimpleNamespace(room=room, plan=lambda round_: None, go=go, close=lambda slabs: None)
    assert audit._twice(worker, one, one.cases[0], 1) == "raised enough"
    assert given == [(2, 20.0)]


@needs_bubblewrap
@pytest.mark.parametrize(
    "work", [SPINS.format(99), "import time\ntime.sleep(99)", DRIPS], ids=["works", "sleeps", "works now and then"]
)
def test_what_does_not_end_is_ended_in_time_all_the_same(work):
    with Referee(Submission((Cell("mine", before_it_answers(work)),)), patience=Patience(20.0, 2.0)) as there:
        there.room.ready()
        began = time.monotonic()
        verdict = there.examine(WORK, seed=1)
    assert "did not end in 2 s" in verdict.cases[0].why
    assert time.monotonic() - began < 45.0


@needs_bubblewrap
@needs_the_count
def test_who_gets_too_little_of_a_machine_waits_for_a_person_or_for_another_try(tmp_path, capsys):
    release = nbformat.read(RELEASES / "01_roofline/roofline.ipynb", as_version=4)
    submission = Submission((Cell("mine", before_it_answers(SPINS.format(99))),))
    with Judging(submission, release, 1, tmp_path) as judging:
        judging.referee = Referee(submission, patience=Patience(20.0, 20.0, whole_s=2.0)).__enter__()
        with busy(judging.referee):
            verdict = judging.verdict(Asked(WORK.name, speed=False))
    assert (verdict["points"], verdict["waits"]) == (0.0, A_PERSON)
    assert re.search("this submission waited [1-4] of 4 s for a processor", verdict["html"])
    assert not list(tmp_path.glob("*.json")), "grading again would not try again"


def test_what_is_waited_for_counts_while_others_wait_still():
    """Ranks and rows of exercises wait side by side, and one of them is the first whose time is over."""
    budget, spent = Budget(0.3), lambda: budget.left(1.0, lambda: 0.0)
    with budget.waiting(OwnTime(9.0)):
        with budget.waiting(OwnTime(9.0)):
            time.sleep(0.3)
        with pytest.raises(Lost, match="used up its time"):
            spent()
    budget, own = Budget(0.3), OwnTime(9.0, time.monotonic)
    with budget.waiting(own), budget.waiting(own):
        time.sleep(0.6)
        with pytest.raises(TooBusy, match="this submission waited 1 of 1 s for a processor"):
            spent()


def test_memory_is_given_back_where_no_time_is_left_to_say_so(monkeypatch):
    done = []

    def unmap():
        worker.lost = "this submission waited 1870 of 1920 s for a processor"
        raise TooBusy(worker.lost)

    monkeypatch.setattr(device, "DEVICE", "cuda")
    worker = SimpleNamespace(lost="", unmap=unmap, room=SimpleNamespace(sweep=lambda: done.append("swept")))
    Worker.close(worker, [SimpleNamespace(close=lambda: done.append("closed"))])
    assert done == ["swept", "closed"]


def test_a_rehearsal_says_that_the_machine_was_too_busy(monkeypatch):
    def refuses(*_):
        raise TooBusy("this submission waited 1870 of 1920 s for a processor")

    release = nbformat.read(RELEASES / "00_start/start.ipynb", as_version=4)
    monkeypatch.setattr(Referee, "__enter__", lambda self: self)
    monkeypatch.setattr(Referee, "__exit__", lambda *_: None)
    monkeypatch.setattr(Referee, "examine", refuses)
    with pytest.raises(trying.CannotTry, match="1870 of 1920 s for a processor, which other programs had"):
        list(trying.rows(Submission(()), release, unsafe=False))


def test_a_rehearsal_says_that_the_machine_did_not_read_the_notebook(monkeypatch):
    def late(*_):
        raise subprocess.TimeoutExpired("python", 60)

    monkeypatch.setattr(limited, "taken_apart", late)
    with pytest.raises(trying.CannotTry, match="did not read it in 60 s; try again"):
        trying.read(RELEASES / "00_start/start.ipynb")
