"""Cases shared out to several workers: the verdict is that of one worker."""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from autograder import exercise
from autograder.bank import entries, find
from autograder.judging.judge import case_verdict
from autograder.judging.outcome import Outcome
from autograder.referee import lanes, referee, room, sandbox, watchdog
from autograder.referee.referee import Patience, Referee
from autograder.referee.room import Lost, NoRoom, Room, Worker
from autograder.referee.submission import Cell, Submission

pytestmark = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
AXPY = exercise.get("start.axpy")
AXPY = replace(AXPY, cases=tuple(case for case in AXPY.cases if not case.share))  # one fills a GPU
RIGHT = find("start.axpy/right/masked").source
FILES = {
    "right": RIGHT,
    "a mistake": find("start.axpy/mistakes/no_mask").source,
    "a stub": "def axpy(a, x, y, out):\n    raise NotImplementedError('not written yet')",
    "a stub at the third size": RIGHT + "\n_axpy = axpy\ndef axpy(a, x, y, out):\n"
    "    if x.numel() == 4096:\n        raise NotImplementedError('not written yet')\n    _axpy(a, x, y, out)",
    "exits at the third size": RIGHT + "\n_axpy = axpy\ndef axpy(a, x, y, out):\n"
    "    import os\n    os._exit(0) if x.numel() == 0 else _axpy(a, x, y, out)",
}


def judged(source, several, monkeypatch):
    monkeypatch.setattr(lanes, "several", lambda: several)
    monkeypatch.setattr(lanes, "CASES", 2)
    with Referee(Submission((Cell("a", source),)), patience=Patience(20.0, 2.0)) as there:
        return there.examine(AXPY, seed=3)


def test_a_card_of_8_gb_has_room_for_one_worker_also_where_the_limit_only_says_so(monkeypatch):
    monkeypatch.setattr(lanes.device, "DEVICE", "cuda")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    for gib, workers in ((7, 1), (23, 1), (40, 3), (140, lanes.MOST)):
        monkeypatch.setattr(lanes.device, "memory_bytes", lambda gib=gib: gib << 30)
        assert lanes.several() == workers


def test_what_a_process_may_take_of_the_gpu_holds_inside_too(monkeypatch):
    monkeypatch.setenv(lanes.device.MEMORY_LIMIT, "7")
    assert sandbox._environment()[lanes.device.MEMORY_LIMIT] == "7"


@pytest.mark.parametrize(("share", "taken"), [(0.125, [referee.OWN]), (0.25, [referee.OWN]), (0.5, []), (1.0, [])])
def test_the_referee_leaves_half_of_a_small_card_to_workers(share, taken, monkeypatch):
    found = []
    monkeypatch.setattr(referee.device, "share_of_sizes", lambda: share)
    monkeypatch.setattr(referee.device, "take_at_most", found.append)
    one = Referee(Submission(()))
    one.room = SimpleNamespace(__enter__=lambda: None)
    assert one.__enter__() is one and found == taken


@pytest.mark.parametrize(
    ("free", "after", "raised"),
    [
        (0.5, 3.0, Lost),  # the worker held 2.5 of 7 GiB, and next to nothing was free
        (0.5, 1.0, torch.OutOfMemoryError),  # it held little: somebody else's memory
        (3.0, 5.5, torch.OutOfMemoryError),  # it held 2.5, but memory was free: the referee met its own limit
    ],
)
def test_a_worker_is_blamed_for_memory_only_where_none_was_free(free, after, raised, monkeypatch):
    left = iter((int(free * 2**30), int(after * 2**30)))
    monkeypatch.setattr(referee.clock, "memory", lambda: (next(left), 7 << 30))
    monkeypatch.setattr(referee, "Worker", lambda room: SimpleNamespace(end=lambda: None, lost=""))
    with pytest.raises(raised), Referee(Submission(()))._worker():
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_what_others_hold_is_what_neither_the_referee_nor_the_worker_does(monkeypatch):
    monkeypatch.setattr(room.device, "DEVICE", "cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (20, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 30)
    monkeypatch.setattr(room.DeviceSlab, "held", 7)
    assert room.full() and room.held_by_others(13) == 30 and room.held_by_others("5") == room.held_by_others() == 43
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (25, 100))
    assert not room.full()


@pytest.mark.parametrize(
    ("free", "others", "after", "wrong"),
    [
        (1, 40, 40, torch.OutOfMemoryError),  # somebody else's: no verdict
        (1, 40, 0, Lost),  # the worker said that it held nothing, and when it ended there was nothing left
        (1, 0, 0, None),  # its own, so the case is wrong
        (60, 40, 40, None),  # it asked for more than any card has
    ],
)
def test_a_call_that_finds_no_memory_beside_others_is_not_wrong(free, others, after, wrong, monkeypatch):
    full = f"{RIGHT}\ndef axpy(a, x, y, out):\n    raise RuntimeError('CUDA out of memory')\n"
    ended, gib = [], 2**30
    monkeypatch.setattr(room, "full", lambda: free < 100 / 4)
    held = lambda told=0: (after if ended else others) * gib  # noqa: E731
    monkeypatch.setattr(room, "held_by_others", held)
    monkeypatch.setattr(referee, "held_by_others", held)
    monkeypatch.setattr(referee.clock, "memory", lambda: (free * gib, 100 * gib))
    end = Worker.end
    monkeypatch.setattr(Worker, "end", lambda worker: (ended.append(worker), end(worker)))
    with Referee(Submission((Cell("mine", full),))) as there:
        if wrong is torch.OutOfMemoryError:
            with pytest.raises(wrong):
                there.examine(AXPY, 1)
        else:
            verdict = there.examine(AXPY, 1)
            assert verdict.points == 0 and ("said that it held less" in str(verdict)) == (wrong is Lost)


HOLD = """
import sys, torch
free, total = torch.cuda.mem_get_info()
held = torch.empty(free - total // 5, dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.gpu
@pytest.mark.xdist_group("a GPU's memory")
@pytest.mark.parametrize("asks", [40, 200])
def test_memory_that_another_process_of_the_gpu_holds_gives_no_verdict(asks):
    greedy = f"import torch\n{RIGHT}\nright = axpy\ndef axpy(a, x, y, out):\n    right(a, x, y, out)\n"
    greedy += f"    torch.empty({asks} << 30, dtype=torch.uint8, device=x.device)\n"
    submission = Submission((Cell("mine", greedy),))
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(torch.OutOfMemoryError), Referee(submission) as there:
            there.examine(AXPY, 1)
        other.stdin.close()
    with Referee(submission) as there:
        verdict = there.examine(AXPY, 1)
    assert (verdict.points == AXPY.points) == (asks == 40), [case.why for case in verdict.cases]


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n != "a mistake" else n for n in FILES])
def test_several_workers_find_what_one_finds(name, monkeypatch):
    one, three = (judged(FILES[name], several, monkeypatch) for several in (1, 3))
    assert [(c.name, c.right, c.why.partition("Lost")[0]) for c in one.cases] == [
        (c.name, c.right, c.why.partition("Lost")[0]) for c in three.cases
    ]
    assert (one.points, one.pending, one.diagnosis) == (three.points, three.pending, three.diagnosis)


WORK = exercise.get("roofline.work")
MATMUL_ONLY = """
def work(op, sizes, dtype):
    if op != "matmul":
        raise NotImplementedError("not written yet")
    b, m, n, k = (sizes[x] for x in ("batch", "m", "n", "k"))
    return 2 * b * m * n * k, b * (m * k + k * n + m * n) * {"fp8": 1, "bf16": 2, "fp16": 2}.get(dtype, 4)
"""


def test_what_an_answer_calls_not_written_takes_no_case_out_of_the_count():
    with Referee(Submission((Cell("a", MATMUL_ONLY),))) as there:
        verdict = there.examine(WORK, seed=3)
    here = [case for case in WORK.cases if case.runs_here]
    assert len(verdict.cases) == len(here) and 3 <= verdict.right <= 4 and verdict.points == 0
    assert all(case.right or case.why.startswith("raised") for case in verdict.cases)


@pytest.mark.parametrize("name", ["start.axpy", "roofline.work", "ddp.ring"])
def test_a_stub_is_called_once_and_all_its_cases_are_wrong(name):
    one = exercise.get(name)
    stub = f"def {one.entry}(*given):\n    raise NotImplementedError('not written yet')"
    with Referee(Submission((Cell("a", stub),))) as there:
        verdict = there.examine(one, seed=3)
    assert len(verdict.cases) == sum(case.runs_here for case in one.cases) and verdict.points == verdict.right == 0
    assert {case.why for case in verdict.cases[1:]} == {"not tried: not written yet"}
    assert verdict.diagnosis.says.startswith("Not written yet") and not verdict.note and not verdict.limits


@pytest.mark.slow
def test_players_run_side_by_side(monkeypatch):
    busy, most, play = set(), [0], Worker.play

    def seen(worker, *given):
        busy.add(worker)
        most[0] = max(most[0], len(busy))
        time.sleep(0.05)
        try:
            return play(worker, *given)
        finally:
            busy.discard(worker)

    monkeypatch.setattr(Worker, "play", seen)
    for several in (1, 2):
        most[0] = 0
        assert judged(RIGHT, several, monkeypatch).points == AXPY.points
        assert most[0] == several


def test_workers_beside_this_one_are_no_processes_left_over(monkeypatch):
    verdict = judged(RIGHT, 3, monkeypatch)
    assert (verdict.points, verdict.held) == (5, 0)


def test_without_a_gpu_there_is_one():
    if lanes.device.DEVICE == "cpu":
        assert lanes.several() == 1
    else:
        assert 1 <= lanes.several() <= lanes.MOST


SCENARIO = exercise.get("roofline.regime")
REGIME = entries(["roofline.regime"], ["right"])[0].source


@pytest.mark.slow
def test_several_exercises_are_judged_ahead_as_they_would_be_one_by_one(monkeypatch):
    monkeypatch.setattr(lanes, "several", lambda: 2)
    with Referee(Submission((Cell("a", RIGHT), Cell("b", REGIME)))) as there:
        there.examine_ahead([SCENARIO, AXPY], seed=3)
        ahead = dict(there.verdicts)
        assert set(ahead) == {("start.axpy", 3), ("roofline.regime", 3)}
        there.verdicts.clear()
        for one in (SCENARIO, AXPY):
            assert there.examine(one, 3).points == ahead[one.name, 3].points == one.points


@pytest.mark.slow
def test_sandboxes_of_exercises_that_are_judged_ahead_start_at_once_and_before_any_code_runs(monkeypatch):
    told, enter, ready, load = [], Room.__enter__, Room.ready, Worker.load
    monkeypatch.setattr(Worker, "load", lambda self, *given: told.append("loads") or load(self, *given))
    monkeypatch.setattr(Room, "__enter__", lambda self: told.append("enters") or enter(self))
    monkeypatch.setattr(lanes, "several", lambda: 2)
    with Referee(Submission((Cell("a", RIGHT), Cell("b", REGIME)))) as there:

        def wait(self):
            ready(self)
            time.sleep(0.0 if self is there.room else 1.0)  # the second sandbox takes longer
            told.append("ready")

        monkeypatch.setattr(Room, "ready", wait)
        there.examine_ahead([SCENARIO, AXPY], seed=3)
        assert len(there.verdicts) == 2
    assert told[:4] == ["enters", "enters", "ready", "ready"] and "loads" in told


def test_a_sandbox_that_does_not_start_says_so_when_it_is_first_asked(monkeypatch):
    sandbox.require()
    with monkeypatch.context() as broken, Referee(Submission((Cell("a", RIGHT),))) as there:
        broken.setattr(sandbox, "command", lambda *given, **options: ["sh", "-c", "echo no such luck >&2; exit 1"])
        there.room.__exit__()
        there.room.__enter__()
        for _ in range(2):
            with pytest.raises(NoRoom, match="did not start: no such luck"):
                there.examine(AXPY, 3)
        broken.undo()
        assert there.examine(AXPY, 3).points == AXPY.points


def test_workers_that_helped_end_while_the_referee_goes_on(monkeypatch):
    """On a GPU a process takes a tenth of a second to end, and those that helped end one after the other."""
    monkeypatch.setattr(lanes, "CASES", 2)

    def alive(there):
        return sum(watchdog._state(pid) not in "Zg" for pid in watchdog.descendants(there.process.pid))

    with Room(Submission((Cell("a", RIGHT),))) as there:
        worker = Worker(there)
        assert not worker.load(AXPY.entry)
        trials = lanes.tried(worker, AXPY, 3, 2)
        assert len(worker.helpers) == 1 and not any(outcome.error for _, _, outcome in trials)
        until = time.monotonic() + 60.0
        while alive(there) > 2 and time.monotonic() < until:
            time.sleep(0.01)
        assert alive(there) == 2  # the zygote, and the worker that is looked at further
        worker.end()


def test_a_second_sandbox_is_begun_where_the_first_did_not_start(monkeypatch):
    sandbox.require()
    command, asked = sandbox.command, []

    def fails_once(*given, **options):
        asked.append(given)
        return ["sh", "-c", "exit 1"] if len(asked) == 1 else command(*given, **options)

    monkeypatch.setattr(sandbox, "command", fails_once)
    with Referee(Submission((Cell("a", RIGHT),))) as there:
        assert there.examine(AXPY, 3).points == AXPY.points
    assert len(asked) == 2


def test_a_sandbox_outlives_the_thread_that_asked_for_it():
    """Rows of exercises begin new ones in threads that end with their row."""
    there = Room(Submission((Cell("a", RIGHT),)))
    with ThreadPoolExecutor(1) as row:
        row.submit(lambda: there.__enter__().ready()).result()
    try:
        time.sleep(0.3)
        assert there.process.poll() is None
        assert list(watchdog.descendants(there.process.pid))
    finally:
        there.__exit__()


@pytest.mark.slow
def test_a_fork_begins_sandboxes_of_its_own():
    """Banks fork, and a fork has none of its parent's threads."""
    with Room(Submission(())) as there:
        there.ready()
        pid = os.fork()
        if pid == 0:
            try:
                with Room(Submission(())) as mine:
                    mine.ready()
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_an_exercise_that_hides_something_is_judged_when_nothing_else_of_the_submission_runs(monkeypatch):
    """Beside it, a worker that has torch could answer through what every sandbox sees: free memory, for example."""
    monkeypatch.setattr(lanes, "several", lambda: 3)
    hidden = exercise.get("dispatch.keys")
    rule = entries(["dispatch.keys"], ["right"])[0].source
    with Referee(Submission((Cell("a", RIGHT), Cell("b", REGIME), Cell("c", rule)))) as there:
        there.examine_ahead([hidden, SCENARIO, AXPY], seed=3)
        assert set(there.verdicts) == {("start.axpy", 3), ("roofline.regime", 3)}
        assert there.examine(hidden, 3).accepted


def test_what_met_trouble_beside_others_is_judged_alone(monkeypatch):
    monkeypatch.setattr(lanes, "several", lambda: 2)
    with Referee(Submission((Cell("a", FILES["exits at the third size"]), Cell("b", REGIME)))) as there:
        there.examine_ahead([SCENARIO, AXPY], seed=3)
        assert set(there.verdicts) == {("roofline.regime", 3)}
        assert "process ended" in there.examine(AXPY, 3).cases[-1].why


def test_a_gpu_is_opened_by_one_worker_after_the_other_and_a_lost_one_is_told_later(monkeypatch):
    busy, most, asked = [0], [0], []

    def ask(worker, order, descriptors, patience_s):
        asked.append(order)
        busy[0] += 1
        most[0] = max(most[0], busy[0])
        time.sleep(0.02)
        busy[0] -= 1
        raise Lost("the process ended")

    monkeypatch.setattr(room.device, "DEVICE", "cuda")
    monkeypatch.setattr(Worker, "ask", ask)
    monkeypatch.setattr(Worker, "__init__", lambda self, lost="": setattr(self, "lost", lost))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(Worker.open, [Worker() for _ in range(4)]))
    assert asked == ["open"] * 4 and most == [1]
    Worker("it did not end").open()
    assert len(asked) == 4


@pytest.mark.slow
def test_no_gpu_is_opened_for_what_asks_for_no_kernels(monkeypatch):
    opened = []
    monkeypatch.setattr(Worker, "open", lambda self: opened.append(self))
    rule = find("mlp.autocast/right/lists").source  # judged where there is no torch
    for name, source, times in (("mlp.autocast", rule, 0), ("start.axpy", RIGHT, 2)):
        opened.clear()
        with Referee(Submission((Cell("a", source),))) as there:
            one = exercise.get(name)
            assert there.examine(one, seed=3).points == one.points
        assert len(opened) == times, name


def test_a_case_that_was_never_tried_names_the_one_that_ended_its_process():
    cases, gone = AXPY.cases[:3], SimpleNamespace(lost="the call did not end in 2 s")
    call = AXPY.draw(cases[0], 1, "cpu", "interpreter")
    trials = lanes.in_order(gone, AXPY, 1, cases, {0: (cases[0], call, Outcome(error="Lost: it did not end"))})
    for trial in trials[1:]:
        said = case_verdict(AXPY, "interpreter", 3, trial).why
        assert said == f"not tried: its process was lost in \u201c{cases[0].name}\u201d: the call did not end in 2 s"
