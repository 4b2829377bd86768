"""Whatever goes wrong in a submission has a verdict with a reason, and costs nobody else anything.

Each row of the table is a fault in the answer to one exercise (or in a cell, or on the device), with the points that
are expected and words that the verdict must say. After each, three neighbours are judged and must get all their
points: another exercise of the same notebook, where the fault leaves it a chance; an honest submission whose sandbox
was open all the while; and everything in the rows that follow.
"""

import functools
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from autograder import exercise
from autograder.bank import entries, find
from autograder.classroom import cohort, verdicts
from autograder.judging import judge
from autograder.referee import room as rooms
from autograder.referee import sandbox, watchdog
from autograder.referee.referee import Referee
from autograder.referee.room import Patience
from autograder.referee.submission import Cell, Submission

pytestmark = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
check = importlib.import_module("autograder.live")
AXPY = exercise.get("start.axpy")
RIGHT = find("start.axpy/right/masked").source
WORK = exercise.get("roofline.work")
RIGHT_WORK = entries(["roofline.work"], ["right"])[0].source
SMALL = functools.partial(sandbox.Limits, memory=800 << 20, tmp_bytes=64 << 20, processes=64)


@dataclass(frozen=True)
class Fault:
    call: str = ""  # what `axpy` does before it answers rightly
    cells: tuple[str, ...] = ()  # or: the cells, as they are
    points: float = 0.0
    says: str = ""  # a pattern that the note or the first case matches
    spares_work: bool = True  # the other exercise of the same notebook keeps its points
    fast: bool = False  # in the selection that `make test` runs
    gpu: bool = False
    call_s: float = 2.0  # a machine at work fills memory slowly

    @property
    def submission(self) -> Submission:
        sources = self.cells or (RIGHT, wrapped(self.call, once=self.points > 0))
        return Submission(tuple(Cell(f"cell {i}", s) for i, s in enumerate((*sources, RIGHT_WORK))))


def wrapped(call: str, once: bool) -> str:
    """`axpy` with a fault before every answer, or before the first one of a process."""
    head = "import ctypes, gc, os, resource, signal, sys, threading, time, warnings\nimport torch\n"
    head += "_right, _calls = axpy, []\ndef axpy(a, x, y, out):\n    _calls.append(1)\n"
    head += f"    if len(_calls) == 1 or not {once}:\n"
    return head + textwrap.indent(textwrap.dedent(call).strip(), " " * 8) + "\n    _right(a, x, y, out)\n"


MANY = "for _ in range(12):\n    if os.fork() == 0:\n        held = bytearray(80 << 20)\n        time.sleep(30)\n"
FAULTS = {
    # it ends
    "it exits": Fault("os._exit(0)", says="process ended", fast=True),
    "it exits by exception": Fault("raise SystemExit(5)", says="process ended"),
    "it is interrupted": Fault("raise KeyboardInterrupt", says="process ended"),
    "it raises": Fault("raise KeyError('lost')", says="KeyError"),
    "segmentation fault": Fault("ctypes.string_at(0)", says="process ended"),
    "abort": Fault("os.abort()", says="process ended"),
    "bus error": Fault("os.kill(os.getpid(), signal.SIGBUS)", says="process ended"),
    "endless recursion": Fault("def f(): return f()\nf()", says="RecursionError"),
    "it kills every process it can": Fault("os.kill(1, 9); os.kill(-1, 9)", says="ProcessLookupError"),
    "it closes its descriptors": Fault("os.closerange(0, 1024)", says="process ended"),
    # it does not end
    "endless loop": Fault("while True: pass", says="did not end"),
    "a loop that ignores signals": Fault(
        "signal.pthread_sigmask(0, range(1, 64))\nwhile True: pass", says="did not end"
    ),
    "it stops itself": Fault("os.kill(os.getpid(), signal.SIGSTOP)", says="did not end"),
    "a deadlock": Fault("lock = threading.Lock(); lock.acquire(); lock.acquire()", says="did not end"),
    "a child that is waited for": Fault("if os.fork() == 0:\n    time.sleep(99)\nos.wait()", says="did not end"),
    # it takes too much
    "memory: one array": Fault("bytearray(1 << 35)", says="MemoryError"),
    "memory: many processes": Fault(MANY + "time.sleep(30)", says="GiB are allowed", call_s=20.0),
    "memory: frames without end": Fault(
        "sys.setrecursionlimit(10**9)\ndef f(n): return [f(n + 1)]\nf(0)", says="GiB are allowed"
    ),
    "memory: files that are only open": Fault(
        "for i in range(12):\n    os.write(os.memfd_create(str(i)), bytes(80 << 20))\ntime.sleep(30)",
        says="GiB are allowed",
    ),
    "memory: while the cells run": Fault(
        cells=("import os, time\n" + MANY + "time.sleep(30)", RIGHT), says="GiB are allowed", spares_work=False
    ),
    "processes": Fault("while True: os.fork()", says="BlockingIOError|did not end|process ended|could not"),
    "threads": Fault(
        "while True: threading.Thread(target=time.sleep, args=(9,)).start()", says="can't start new|process ended"
    ),
    "full disk": Fault("open('/tmp/big', 'wb').write(bytes(1 << 27))", says="No space left"),
    "a file too large": Fault("os.truncate(os.open('/tmp/f', 66), 1 << 40)", says="File too large"),
    "descriptors": Fault("kept = [open('/dev/null') for _ in range(99999)]", says="Too many open files"),
    "200 MB of output": Fault("print('x' * 200_000_000)", points=5.0, fast=True),
    "output without end": Fault("while True: print('x' * 10_000, flush=True)", says="did not end"),
    "a processor for ever": Fault("if os.fork() == 0:\n    while True: pass", points=5.0),
    # it leaves something behind, or changes its own process
    "a daemon": Fault("if os.fork() == 0:\n    os.setsid()\n    time.sleep(99)\n    os._exit(0)", points=5.0),
    "other settings": Fault(
        "torch.set_num_threads(2); warnings.simplefilter('error'); gc.disable(); sys.stdout = None; "
        "os.umask(0o777); os.chdir('/')",
        points=5.0,
    ),
    "its own clock jumps": Fault("time.time = time.monotonic = time.perf_counter = lambda: -1e9", points=5.0),
    "lower limits for itself": Fault(
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))", says="process ended|Too many"
    ),
    # in the cells
    "a cell raises": Fault(cells=("1 / 0", RIGHT, "undefined_name"), points=5.0),
    "a cell is no Python": Fault(cells=("def (:", RIGHT), points=5.0),
    "a cell exits": Fault(cells=("exit()", RIGHT, "raise SystemExit"), points=5.0),
    "a cell kills the process": Fault(cells=("import os; os._exit(1)", RIGHT), says="process ended", spares_work=False),
    "a cell that parses and does not compile": Fault(cells=("def f(a, a): pass", RIGHT), points=5.0),
    "a cell of nul bytes": Fault(cells=("x = '\0'", RIGHT), points=5.0),
    "nothing is defined": Fault(cells=("pass",), says="`axpy` is not defined"),
    "a number in place of the function": Fault(cells=("axpy = 5",), says="should be a function"),
    "no such argument": Fault(cells=("def axpy(): pass",), says="TypeError"),
    # on the device, which the first call opens: on a busy host that took more than 2 s
    "GPU memory": Fault("kept = torch.empty(1 << 40, device='cuda')", says="OutOfMemoryError", gpu=True, call_s=15.0),
    "nearly all GPU memory": Fault(
        "globals()['kept'] = torch.empty(torch.cuda.mem_get_info()[0] - (1 << 28), dtype=torch.uint8, device='cuda')",
        says="of the GPU, and too little was left",
        gpu=True,
        call_s=15.0,
    ),
    "an error that sticks to the device": Fault(
        "torch.zeros(2, device='cuda')[torch.tensor([99], device='cuda')]; torch.cuda.synchronize()",
        says="device-side assert",
        gpu=True,
        call_s=15.0,
    ),
    "a kernel that waits for ever": Fault("torch.cuda._sleep(1 << 50)", says="did not end", gpu=True),
}
MARKS = {True: [pytest.mark.gpu, pytest.mark.xdist_group("a GPU's memory")], False: []}
ROWS = [
    pytest.param(name, marks=[*MARKS[f.gpu], *([] if f.fast else [pytest.mark.slow])]) for name, f in FAULTS.items()
]


def test_the_table_is_long_enough():
    assert len(FAULTS) >= 30


def small_room(submission: Submission, monkeypatch, call_s=2.0) -> Referee:
    monkeypatch.setattr(rooms.sandbox, "Limits", SMALL)
    return Referee(submission, patience=Patience(cells_s=20.0, call_s=call_s))


@pytest.fixture(scope="module")
def neighbour():
    """An honest submission in a sandbox of its own, open during all the faults."""
    with Referee(Submission((Cell("cell", RIGHT),))) as room:
        yield room


seeds = iter(range(10**6))


def said_by(verdict) -> str:
    return " ".join([verdict.note, *(case.why for case in verdict.cases[:1])])


@pytest.mark.parametrize("name", ROWS)
def test_a_fault_has_its_verdict_and_harms_no_neighbour(name, neighbour, monkeypatch):
    fault, seed = FAULTS[name], next(seeds)
    with small_room(fault.submission, monkeypatch, fault.call_s) as room:
        verdict = room.examine(AXPY, seed)
        assert verdict.points + verdict.held == fault.points, said_by(verdict)  # a person looks at what imports os
        assert bool(verdict.held) == verdict.pending
        assert re.search(fault.says, said_by(verdict)), said_by(verdict)
        assert fault.points or said_by(verdict).strip(), "no points, and no reason"
        if fault.spares_work:
            assert room.examine(WORK, seed).points == WORK.points
    assert neighbour.examine(AXPY, seed).points == AXPY.points


# ----------------------------------------------------------------------------- faults around the sandbox


def test_a_sandbox_that_is_ended_from_outside_is_said_and_the_next_exercise_gets_a_new_one(monkeypatch):
    """As the kernel does when the machine runs out of memory."""
    with small_room(Fault("time.sleep(9)").submission, monkeypatch) as room:
        room.room.ready()
        killed = threading.Timer(0.5, watchdog.kill, [room.room.process.pid])
        killed.start()
        verdict = room.examine(AXPY, 1)
        killed.join()
        assert verdict.points == 0 and "process ended" in said_by(verdict)
        assert room.examine(WORK, 1).points == WORK.points


TAKEN = {
    "time": "resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))",
    "memory": "resource.prlimit(1, resource.RLIMIT_AS, (1 << 30, 1 << 30))",
    "processes": "resource.prlimit(1, resource.RLIMIT_NPROC, (0, 0))",
    "files": "resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))",
    "its place in the queue": "os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
}


@pytest.mark.parametrize("what", [pytest.param(w, marks=[] if w == "time" else pytest.mark.slow) for w in TAKEN])
def test_what_one_exercise_takes_from_process_1_the_next_one_does_not_lack(what, monkeypatch):
    """Workers are forked from it, and have its limits."""
    says = "import os, resource\ndef work(*args):\n    raise OSError([os.sched_getscheduler(0)] + limits())\n"
    says += "def limits():\n    return [resource.getrlimit(kind)[1] for kind in range(16)]\n"
    with small_room(Submission((Cell("c", says),)), monkeypatch) as fresh:
        allowed = said_by(fresh.examine(WORK, 1))
    cells = (*Fault(TAKEN[what]).submission.cells[:2], Cell("c", says))
    with small_room(Submission(cells), monkeypatch) as room:
        room.examine(AXPY, 1)
        for seed in (1, 2):
            assert said_by(room.examine(WORK, seed)) == allowed
    assert "OSError: [0, -1" in allowed


def test_a_grader_that_is_killed_leaves_no_process_behind():
    program = f"""
import sys, time
from autograder import exercise
from autograder.referee.referee import Referee
from autograder.referee.submission import Cell, Submission
source = {RIGHT!r} + "import os, time\\nif os.fork() == 0:\\n    os.setsid()\\n    time.sleep(99)\\ntime.sleep(99)"
with Referee(Submission((Cell("c", source),))) as room:
    room.room.ready()
    print(room.room.process.pid, flush=True)
    room.examine(exercise.get("start.axpy"), 1)
"""
    grader = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    outside = int(grader.stdout.readline())
    time.sleep(1.0)
    inside = [outside, *watchdog.descendants(outside)]
    assert len(inside) >= 3
    os.kill(grader.pid, signal.SIGKILL)
    grader.communicate()
    until = time.monotonic() + 60.0
    while (left := [pid for pid in inside if alive(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_wall_clock_that_jumps_changes_nothing(monkeypatch, neighbour):
    jumps = iter([0.0, 1e9, -1e9, 5.0] * 10_000)
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    assert neighbour.examine(AXPY, next(seeds)).points == AXPY.points


@pytest.mark.parametrize(
    "lack",
    [
        torch.OutOfMemoryError("no memory"),
        pytest.param(RuntimeError("CUDA error: out of memory"), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("held", [0.1, 0.6])
def test_memory_that_judging_lacks_is_the_submissions_fault_only_where_it_held_it(held, lack, monkeypatch):
    from autograder.referee import clock, referee, replay

    free = iter([(0.05, 1.0), (0.05 + held, 1.0)])
    monkeypatch.setattr(clock, "memory", lambda: next(free))
    with monkeypatch.context() as short, Referee(Submission((Cell("cell", RIGHT + RIGHT_WORK),))) as room:
        short.setattr(replay, "judge", lambda *_: (_ for _ in ()).throw(lack))
        if held < referee.TOO_MUCH:
            with pytest.raises(torch.OutOfMemoryError):
                room.examine(AXPY, 1)
        else:
            verdict = room.examine(AXPY, 1)
            assert verdict.points == 0 and "too little was left to judge with" in verdict.note
        short.undo()
        assert room.examine(WORK, 1).points == WORK.points


def test_a_reference_kernel_that_is_not_there_leaves_the_share_of_the_floor():
    """A cohort's copy of the course has no course_lib.kernels."""
    softmax = exercise.get("roofline.softmax")
    without = replace(softmax, speed=replace(softmax.speed, reference="course_lib.no_such_room:softmax"))
    assert softmax.speed.kernel() is not None
    assert without.speed.kernel() is None
    assert verdicts.stored(judge.no_speed(without, "interpreter"))["pending"]


# ----------------------------------------------------------------------------- faults around the verdicts


class Counting:
    """Stands for a room: every verdict that had to be made."""

    def __init__(self, verdict):
        self.verdict, self.made = verdict, 0

    def examine(self, exercise, seed):
        self.made += 1
        return self.verdict

    def __exit__(self, *error):
        pass


@pytest.fixture(scope="module")
def right_verdict(neighbour):
    return neighbour.examine(AXPY, next(seeds))


def judging(folder: Path, verdict) -> verdicts.Judging:
    release = verdicts.NotebookNode(cells=[])
    made = verdicts.Judging(Submission((Cell("c", RIGHT),)), release, 1, folder)
    made.referee = Counting(verdict)
    return made


ASKED = verdicts.Asked("start.axpy", False)


class Faulty(Counting):
    def examine(self, exercise, seed):
        raise self.verdict


@pytest.mark.parametrize("fault", [KeyError("<b>"), RecursionError(), AssertionError("two\ud800")], ids=repr)
def test_a_fault_of_the_referee_itself_is_a_reason_and_not_the_end(fault, tmp_path, right_verdict, capsys):
    first = judging(tmp_path, right_verdict)
    first.referee = Faulty(fault)
    told = first.verdict(ASKED)
    assert told["pending"] and told["points"] == 0 and told["out_of"] == AXPY.points
    assert type(fault).__name__ in told["html"] and "<b>" not in told["html"] and "a person grades it" in told["html"]
    told["html"].encode()
    assert "Traceback" in capsys.readouterr().err and not list(tmp_path.glob("*.json"))
    assert judging(tmp_path, right_verdict).verdict(ASKED)["points"] == AXPY.points, "mended, the next run judges"


@pytest.mark.parametrize("damage", [b"", b'{"points": 5', b"\xff\xfe", None], ids=["empty", "torn", "bytes", "gone"])
def test_a_verdict_file_that_cannot_be_read_is_made_again(damage, tmp_path, right_verdict):
    first = judging(tmp_path, right_verdict)
    before = first.verdict(ASKED)
    (path,) = tmp_path.glob("*.json")
    path.unlink() if damage is None else path.write_bytes(damage)
    again = judging(tmp_path, right_verdict)
    assert again.verdict(ASKED) == again.verdict(ASKED) == before
    assert again.referee.made == 1


def test_a_full_disk_leaves_no_half_verdict_and_the_next_run_goes_on(tmp_path, right_verdict):
    """The largest file that this process may write stands for the disk."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError):
            judging(tmp_path, right_verdict).verdict(ASKED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.glob("*.json")) == []
    assert judging(tmp_path, right_verdict).verdict(ASKED)["points"] == 5


def test_a_seed_is_drawn_once_however_many_draw_it(tmp_path, monkeypatch):
    first = verdicts.run_seed(tmp_path, "00_start")
    monkeypatch.setattr(Path, "exists", lambda self: False)  # two graders looked before either had drawn
    assert verdicts.run_seed(tmp_path, "00_start") == first
    assert [p.name for p in tmp_path.iterdir()] == ["00_start.seed"]


def test_progress_is_one_plain_line_a_notebook():
    bar = cohort.Progress(4)
    bar.done = 1
    rows = [("start.axpy", 3.0, 5.0, False), ("roofline.graph", 0.0, 4.0, True)]
    said = "[#####...............] 1/4 ada: 3 of 9 points; these wait: roofline.graph; 30 s left"
    assert bar.line("ada", rows, 10.0) == said
    rows += [(f"roofline.{name}, speed", 0.0, 3.0, True) for name in ("graph", "softmax")]
    assert "3 of 15 points; these wait: roofline.graph, 2 for speed; 30 s left" in bar.line("ada", rows, 10.0)
