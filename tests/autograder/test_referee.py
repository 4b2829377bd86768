"""The referee judges from outside; whatever a submission does costs itself only."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from autograder import exercise
from autograder.bank import find
from autograder.call.trial import lay_out
from autograder.judging.outcome import Outcome
from autograder.referee import room as rooms
from autograder.referee.referee import Patience, Referee
from autograder.referee.submission import Cell, Submission, extract
from course_lib.device import DEVICE, TIER

pytestmark = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
COURSE = Path(__file__).resolve().parents[2]
RIGHT = find("start.axpy/right/masked").source
AXPY = exercise.get("start.axpy")


def room(*sources, cells_s=20.0, call_s=20.0):
    cells = tuple(Cell(f"cell {i}", source) for i, source in enumerate(sources))
    return Referee(Submission(cells), patience=Patience(cells_s, call_s))


def judged(*sources, **patience):
    with room(*sources, **patience) as there:
        return there.examine(AXPY, seed=1)


def test_a_right_submission_gets_its_points_from_outside():
    verdict = judged(RIGHT)
    assert verdict.accepted and verdict.points == 5


def test_annotations_that_a_cell_postpones_are_not_looked_up_in_later_cells_either():
    later = RIGHT.replace("def axpy(a, x, y, out):", "def axpy(a, x: Tensor, y: Tensor, out) -> Nothing:")
    assert later != RIGHT
    verdict = judged("from __future__ import annotations", later)
    assert verdict.points == 5, verdict.note


def test_a_cell_may_await_as_in_a_notebook_and_one_loop_serves_all_cells():
    begun = "import asyncio\nawait asyncio.sleep(0)\nsize = asyncio.create_task(asyncio.sleep(0.01, 64))"
    verdict = judged(begun, f"size = await size\n{RIGHT}", "assert size == 64; input()")
    assert verdict.points == 5 and "input()" in verdict.endless[0], verdict.note


def test_a_task_may_begin_in_a_cell_that_awaits_nothing():
    begun = "import asyncio\nasync def half():\n    return 32\nhalf = asyncio.create_task(half())\n"
    verdict = judged(begun + RIGHT, "assert 2 * half.result() == 64 == 2 * await half; input()")
    assert verdict.points == 5 and "input()" in verdict.endless[0], verdict.note


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("1 / 0\nwhile True: pass", ""),
        ("while True:\n    try: x\n    except Exception: pass", "did not end and was stopped at line"),
        ("import asyncio\nwhile True: await asyncio.sleep(0)", "did not end and was stopped"),
        ("import time\nwhile True:\n    try: time.sleep(9)\n    except: pass", "did not end and was stopped"),
        (
            "import time\ndef f():\n    try: time.sleep(9)\n    except BaseException as e: print(e)\nwhile True: f()",
            "stopped",
        ),
        ("import asyncio, time\nwhile True:\n    try: time.sleep(9)\n    except: await asyncio.sleep(0)", "stopped"),
        ("import time\n\ntime.sleep(1e9)", "did not end and was stopped at line 3: time.sleep(1e9)"),
        ("name = input()", "asks for input at line 1: name = input()"),
    ],
)
def test_a_cell_that_never_ends_costs_nothing_and_is_told(source, told):
    verdict = judged(source, RIGHT, cells_s=6.0)
    assert verdict.points == 5 and told in " ".join(verdict.endless) and bool(verdict.endless) == bool(told)


def test_what_is_told_of_cells_is_short_and_each_in_a_line():
    budget = rooms.Budget(1.0)
    budget.tell([(f"a\n{n}", "TimeOver: still running when its time was over", "x" * n) for n in range(9)])
    assert len(budget.endless) == rooms.SAID and not any("\n" in one for one in budget.endless.values())


def test_a_name_that_a_call_does_not_find_is_told_with_the_cell_that_raised_before_it_bound_it():
    asks = "\n_all = axpy\ndef axpy(a, x, y, out):\n    {}\n    return _all(a, x, y, out)"
    cells = (Cell("helper", "TILES = [1 // 0]"), Cell("mine", RIGHT + asks.format("TILES[0]")))
    with Referee(Submission(cells)) as there:
        verdict = there.examine(AXPY, seed=1)
    said = "NameError: name 'TILES' is not defined [The cell helper raised ZeroDivisionError: "
    whys = [one.why for one in verdict.cases]
    assert verdict.points == 0 and whys and all(said in why for why in whys)
    other = Submission(cells).explained("NameError: name 'OTHER' is not defined", [["helper", "X: y", ""]])
    assert other == "NameError: name 'OTHER' is not defined"


def test_of_many_cells_that_raised_the_one_that_should_define_the_answer_is_told_first():
    above, below = [f"a{n} = missing" for n in range(4)], [f"b{n} = missing" for n in range(4)]
    cells = tuple(Cell(f"cell {n}", text) for n, text in enumerate([*above, "def axpy(: pass", *below]))
    with Referee(Submission(cells, checked={"axpy": "cell 4"})) as there:
        note = there.examine(AXPY, seed=1).note
    places = [note.index(f"The cell {told}") for told in ("cell 4 raised SyntaxError", "cell 3 ", "cell 2 ")]
    assert places == sorted(places) and "cell 5" not in note, note


def test_what_another_text_does_is_told_of_nobody():
    with room(RIGHT) as there:
        worker = rooms.Worker(there.room)
        assert worker.load("axpy", Submission((Cell("edited", "input()"),)))
        worker.end()
        assert not there.room.budget.endless


def test_a_mistake_is_named_as_in_the_notebook():
    verdict = judged(RIGHT.replace("mask=", "mask=True or "))
    assert verdict.points == 0


@pytest.mark.slow
def test_one_sandbox_serves_several_exercises():
    with room(RIGHT) as there:
        verdicts = [there.examine(AXPY, seed) for seed in (1, 2, 3)]
    assert [(verdict.points, verdict.note) for verdict in verdicts] == [(5, "")] * 3


@pytest.mark.parametrize(("settled", "points"), [("cell 0", 5), ("cell 2", 0)])
def test_a_name_that_is_bound_again_below_a_check_means_what_it_meant_there(settled, points):
    """What a later cell binds for the first time is there: a helper may be written below."""
    mine = RIGHT.replace("n = x.numel()", "n = count(x)").replace("512", "BLOCK") + "\nBLOCK = 512\n"
    texts = mine, "def count(x):\n    return x.numel()", "BLOCK = 500"
    cells = tuple(Cell(f"cell {number}", text) for number, text in enumerate(texts))
    with Referee(Submission(cells, checked={"axpy": settled})) as there:
        verdict = there.examine(AXPY, seed=1)
    assert verdict.points == points, verdict.note


@pytest.mark.slow
def test_a_right_answer_whose_names_another_exercise_binds_again_keeps_its_points_in_a_solved_lesson():
    """`work` and the later exercises of lesson 01 each have a `softmax` of their own."""
    release, solved = (
        json.loads((COURSE / folder / "01_roofline/roofline.ipynb").read_text(encoding="utf-8"))
        for folder in ("notebooks", "solutions")
    )
    lesson = extract(release, solved)
    (number,) = (n for n, cell in enumerate(lesson.cells) if "def work(" in cell.source)
    mine = find("roofline.work/right/kernels_composed").source
    cells = (*lesson.cells[:number], Cell("mine", mine), *lesson.cells[number + 1 :])
    with Referee(replace(lesson, cells=cells)) as there:
        verdict = there.examine(exercise.get("roofline.work"), seed=1)
    assert verdict.points == verdict.out_of, verdict.note


FAULTS = {  # beside those that `make test` tries in test_faults.py
    "segmentation fault": ("import ctypes\ndef axpy(a, x, y, out):\n    ctypes.string_at(0)", "process ended"),
    "ignores signals": (
        "import signal\ndef axpy(a, x, y, out):\n    signal.pthread_sigmask(0, range(1, 64))\n    while True: pass",
        "did not end",
    ),
    "raises": ("def axpy(a, x, y, out):\n    raise KeyError('lost')", "KeyError"),
    "exit by exception": ("def axpy(a, x, y, out):\n    raise SystemExit", "process ended"),
    "memory bomb": ("def axpy(a, x, y, out):\n    bytearray(1 << 35)", "MemoryError"),
    "returns what is no data": ("def axpy(a, x, y, out):\n    return lambda: 1", "never written"),
}


LATER = "raises", "exit by exception"


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LATER else n for n in FAULTS])
def test_a_fault_is_a_verdict_with_its_reason(name):
    source, reason = FAULTS[name]
    verdict = judged(source, call_s=2.0)
    assert verdict.points == 0
    assert reason in verdict.cases[0].why


def test_after_a_fault_the_next_exercise_finds_a_clean_room():
    """The first worker leaves a daemon that would answer for the next one; it must be gone."""
    lingering = RIGHT + "\nimport os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass\n"
    with room(lingering) as there:
        assert there.examine(AXPY, seed=1).points == 5
        assert there.examine(AXPY, seed=2).points == 5


def test_the_next_exercise_finds_no_files_of_the_one_before():
    leaves = """
import os
def axpy(a, x, y, out):
    left = [n for folder in ("/tmp", "/dev/shm", "/tmp/home") for n in os.listdir(folder) if n not in KNOWN]
    for folder in ("/tmp/left/deep", "/tmp/home/left/deep"):
        os.makedirs(folder, exist_ok=True)
        open(f"{folder}/file", "w").close()
        os.chmod(folder, 0)
    open("/dev/shm/left", "w").close()
    os.chdir("/tmp/left")
    for _ in range(3000):  # deeper than Python's stack, and than any path is long
        os.mkdir("d")
        os.chdir("d")
    os.symlink("/usr", "/tmp/left/elsewhere") if not os.path.lexists("/tmp/left/elsewhere") else None
    raise RuntimeError(f"found {left}")
"""
    leaves = leaves.replace("KNOWN", repr(["home", *Path(__file__).parts]))  # the course may lie in /tmp itself
    with room(leaves) as there:
        assert "found []" in there.examine(AXPY, seed=1).cases[0].why
        assert "found []" in there.examine(AXPY, seed=2).cases[0].why


def test_the_zygote_cannot_be_read_written_or_killed_by_a_worker():
    nosy = """
import os
def axpy(a, x, y, out):
    found = []
    for what in ("mem", "environ", "fd", "maps"):
        try:
            (os.listdir if what == "fd" else lambda p: open(p, "rb").read(1))(f"/proc/1/{what}")
            found.append(what)
        except OSError:
            pass
    try:
        os.kill(1, 9)
    except OSError:
        pass
    raise RuntimeError(f"found {found}")
"""
    with room(nosy) as there:
        assert "found []" in there.examine(AXPY, seed=1).cases[0].why
        assert "found []" in there.examine(AXPY, seed=2).cases[0].why


def test_a_worker_computes_with_several_threads_because_the_zygote_has_none(monkeypatch):
    """A pool of threads made in the zygote is not there after the fork, and the first operation would wait for it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    counts = """
import os, torch
def axpy(a, x, y, out):
    total = int(torch.ones(1 << 22).sum())
    raise RuntimeError(f"{total} by {torch.get_num_threads()}")
"""
    assert f"{1 << 22} by 2" in judged(counts).cases[0].why


def test_a_cell_that_raises_or_exits_costs_only_what_it_defines():
    verdict = judged("1 / 0", "exit()", RIGHT, "undefined_name", "raise SystemExit")
    assert verdict.points == 5


def test_a_cell_that_never_ends_costs_only_what_it_defines():
    with room("while True:\n    pass", RIGHT, cells_s=4.0) as there:
        assert there.examine(AXPY, seed=1).points == 5


def test_a_missing_function_is_said_with_the_cell_that_raised():
    verdict = judged("1 / 0\ndef axpy(): pass")
    assert verdict.points == 0
    assert "`axpy` is not defined" in verdict.note and "ZeroDivisionError" in verdict.note


def test_an_answer_changed_after_it_was_given_does_not_count():
    """A thread that goes on writing cannot turn a wrong answer into a right one."""
    late = (
        RIGHT.replace("def axpy", "def later")
        + """
import threading, time
def axpy(a, x, y, out):
    threading.Thread(target=lambda: (time.sleep(0.05), later(a, x, y, out)), daemon=True).start()
"""
    )
    assert judged(late).right <= 1  # the case without elements


def test_what_is_written_after_the_answer_came_does_not_count():
    slabs, case = [], AXPY.cases[0]
    fenced = lay_out(AXPY, AXPY.draw(case, 1, DEVICE, TIER), rooms._filling(slabs))
    fenced["out"].view.fill_(1.0)
    outcome = rooms._left_behind(AXPY, case, Outcome(), {}, None, fenced)
    fenced["out"].view.fill_(2.0)
    assert outcome.outputs["out"].numel() and (outcome.outputs["out"] == 1.0).all()
    for one in slabs:
        one.close()


def test_troubles_of_another_shape_are_a_verdict_and_no_error_of_ours():
    """The cells send their own report of the cells, past our code."""
    forged = """
import json, os, socket, struct
message = json.dumps({"troubles": [["a"]], "defined": True, "callable": True}).encode()
for descriptor in range(3, 64):
    try:
        os.write(descriptor, struct.pack("!I", len(message)) + message)
    except OSError:
        pass
"""
    assert "process ended" in judged(forged).note


FORGED = """
import json, os, socket, struct
def axpy(a, x, y, out):
    message = {message}
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, struct.pack("!I", {length}) + message)
        except OSError:
            pass
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("message", "length"),
    [
        ('b\'{"error": null, "launches": 1, "seconds": 0}\'', "len(message)"),
        ("b'[' * 100000", "len(message)"),
        pytest.param("b'not json'", "len(message)", marks=pytest.mark.slow),
        ("b''", "4_000_000_000"),
        ('b\'{"ask": 7, "call": "truth", "values": []}\'', "len(message)"),
    ],
    ids=["a report", "deep nesting", "no json", "huge", "asks for what is not served"],
)
def test_a_message_written_past_our_code_earns_nothing(message, length):
    assert judged(FORGED.format(message=message, length=length)).points == 0


KEPT = "    kept = []\n    kept.append(tl.load(x_ptr + offs, mask=mask, other=0.0))\n    x = kept[0]\n"
LOADED = "    x = tl.load(x_ptr + offs, mask=mask, other=0.0)\n"


@pytest.mark.skipif(TIER != "interpreter", reason="on a GPU every launch is compiled")
def test_a_kernel_that_only_the_interpreter_takes_earns_nothing_and_its_line_is_told():
    assert LOADED in RIGHT
    verdict = judged(RIGHT.replace(LOADED, KEPT))
    assert verdict.points == 0 and not verdict.held and verdict.right == len(verdict.cases)
    assert "no GPU would" in verdict.note and "kept.append" in verdict.note


@pytest.mark.skipif(TIER != "interpreter", reason="on a GPU every launch is compiled")
def test_a_kernel_that_cannot_be_compiled_alone_waits_for_a_person():
    """A constant that cannot travel to the compiler's process says nothing about the kernel."""
    source = RIGHT.replace("n, a, BLOCK: tl.constexpr", "n, a, how: tl.constexpr, BLOCK: tl.constexpr")
    verdict = judged(source.replace("n, a, BLOCK=", "n, a, object(), BLOCK="))
    assert verdict.held == 5 and "could not be seen" in verdict.note


def test_kernels_that_build_on_each_other_are_honest():
    """Half of the programs of the first kernel spoil everything that the second makes of it."""
    chain = """
import torch
import triton
import triton.language as tl


@triton.jit
def _part_kernel(parts_ptr, a):
    tl.store(parts_ptr + tl.program_id(0), a / 32)


@triton.jit
def _axpy_kernel(parts_ptr, x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    a = tl.sum(tl.load(parts_ptr + tl.arange(0, 32)), 0)
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + offs, mask=offs < n), tl.load(y_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs, a * x + y, mask=offs < n)


def axpy(a, x, y, out):
    parts = torch.full((32,), float("nan"), device=x.device)
    _part_kernel[(32,)](parts, a)
    _axpy_kernel[(triton.cdiv(x.numel(), 128),)](parts, x, y, out, x.numel(), BLOCK=128)
"""
    verdict = judged(chain)
    assert (verdict.points, verdict.held) == (5, 0), verdict.note
