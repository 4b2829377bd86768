"""The cheats of the bank: what they say of themselves, that they work where there is no referee, that it stops them."""

import ast
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter

import pytest
import torch

from autograder.bank import cheats
from autograder.bank.recording import command, kept
from autograder.exercise import get
from autograder.referee import audit, replay
from autograder.referee.submission import Cell, Submission
from course_lib import device

CHEATS = cheats.cheats()
HERE = [cheat for cheat in CHEATS if device.TIER in cheat.tiers]
ONE_EACH = cheats.one_each_family(HERE)
# What stops these has a quicker test of its own: of the sandbox, the fences, the judge, the reading, the recorder.
TESTED_ELSEWHERE = (
    """
bomb, crash, hang, zygote, result channel, out of bounds, inputs changed, output not computed, lower precision,
extrapolation, race, hidden names, decoy kernel, fallback, lazy tensor, done before the work, persistent kernel,
notebook machinery, script in the report, environment sniffing, vendor call, patched timers, project files,
reference kernel, gradebook, slower reference
""".replace("\n", " ")
    .strip()
    .split(", ")
)
GROUPS = [
    [cheat for cheat in ONE_EACH if cheat.family not in TESTED_ELSEWHERE],
    [cheat for cheat in ONE_EACH if cheat.family in TESTED_ELSEWHERE],
]
SEED = 20260101  # the one that `precomputed_for_a_known_seed` knows

needs_bubblewrap = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")


def named(cheat):
    return str(cheat)


def test_there_are_at_least_sixty_and_every_family_is_there():
    counts = Counter(cheat.family for cheat in CHEATS)
    assert len(CHEATS) >= 60
    assert set(counts) == set(cheats.FAMILIES) >= set(TESTED_ELSEWHERE)


@pytest.mark.parametrize("cheat", CHEATS, ids=named)
def test_every_file_says_how_it_works_and_how_it_is_caught(cheat):
    assert len(cheat.reason) > 30 and cheat.reason.endswith(".")
    assert cheat.caught and cheat.caught == cheat.caught.strip(".")
    assert set(cheat.tiers) <= {"interpreter", "gpu"}
    for one in ast.parse(cheat.source).body:  # as where something is hidden
        compile(ast.Module([one], []), str(cheat), "exec")


# ------------------------------------------------------------------------------------- where there is no referee

# Each cheat in a process of its own, forked from one that has imported everything; in a copy of the course.
IN_ONE_PROCESS = """
import linecache, os, sys, types
from autograder import check, check_speed, exercise, live
from autograder.bank import cheats
from autograder.call import in_process, trial
import torch
torch.set_num_threads(1)
trial.counting = lambda function, *_: function  # it tells honest students of torch's arithmetic
in_process._refused_by_compiler = lambda: ""  # and this of what no GPU runs
for cheat in cheats.cheats():
    if str(cheat) not in sys.argv[2:]:
        continue
    if os.fork() == 0:
        points = "nothing"
        try:
            cell = types.ModuleType("__main__")
            sys.modules["__main__"] = cell
            source = cheat.source
            linecache.cache["<cell>"] = (len(source), None, source.splitlines(keepends=True), "<cell>")
            exec(compile(source, "<cell>", "exec"), cell.__dict__)
            judge = check_speed if cheat.speed else check
            entry = exercise.get(cheat.exercise).entry
            points = f"{judge(cheat.exercise, getattr(cell, entry), seed=int(sys.argv[1])).points:g}"
        except BaseException as error:
            points = f"{type(error).__name__}: {error}"
        print(cheat, points, sep="\\t", flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture
def course(tmp_path):
    """A copy of the course with a gradebook beside it: some cheats write wherever they can."""
    for name in ("autograder", "course_lib", "tests/bank"):
        shutil.copytree(cheats.COURSE / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    cheats.gradebook(tmp_path)
    return tmp_path


def without_referee(course, some):
    """What `check` gives, or what happened instead, by path."""
    names = [str(cheat) for cheat in some]
    environment = os.environ | {"PYTHONPATH": str(course), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", IN_ONE_PROCESS, str(SEED), *names],
        cwd=course, env=environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    rows = [line.split("\t") for line in done.stdout.splitlines() if line.count("\t") == 1]
    return dict(rows) or {"": done.stderr[-2000:]}


def without_points(course, some):
    got = without_referee(course, some)
    names = [str(cheat) for cheat in some]
    return {n: got.get(n, got.get("")) for n in names if not _is_more_than_nothing(got.get(n, ""))}


def _is_more_than_nothing(points: str) -> bool:
    try:
        return float(points) > 0
    except ValueError:
        return False


@pytest.mark.slow
def test_every_naive_cheat_gets_points_where_there_is_no_referee(course):
    assert not without_points(course, [cheat for cheat in HERE if cheat.naive])


@pytest.mark.slow
def test_a_gradebook_and_a_neighbour_in_reach_are_used(course):
    aimed = [cheat for cheat in CHEATS if cheat.family == "gradebook"]
    got = without_referee(course, aimed)
    assert got["start.axpy/neighbours_submission_taken"] == "5"
    with sqlite3.connect(course / "gradebook.db") as book:
        assert book.execute("select auto_score from grade").fetchone() == (5.0,)
    book.close()


# ------------------------------------------------------------------------------------- the referee


def missed(some, seed):
    return [f"{tried.cheat}: {tried.missed}" for tried in cheats.run(some, seed) if tried.missed]


@needs_bubblewrap
@pytest.mark.parametrize("group", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_one_cheat_a_family_earns_nothing_and_harms_nobody(group):
    assert not missed(GROUPS[group], SEED + 1)


@needs_bubblewrap
def test_a_cheat_has_the_time_to_come_to_what_stops_it(monkeypatch):
    """A first call that imports the compiler takes seconds, and a clock that ends it tells nothing of the cheat."""
    (cheat,) = (one for one in cheats.cheats(["capstone.qkv"]) if one.entry.name == "reference_imported")
    spins = "import time\n_attend, began = attend, []\ndef attend(*args):\n"
    spins += "    began.append(time.process_time())\n    while time.process_time() - began[0] < 2.5:\n"
    spins += "        pass\n    return _attend(*args)\n"
    slower = lambda entry: Submission((Cell("a", entry.source + spins * (entry == cheat.entry)),))  # noqa: E731
    monkeypatch.setattr(cheats, "_submission", slower)
    assert "No module named 'course_lib.kernels.attention'" in cheats.attempt(cheat, SEED).how


def test_what_is_kept_of_a_cheat_names_no_folder_of_this_machine():
    kept = cheats.row(cheats.Tried(HERE[0], how=f"raised an error in {cheats.COURSE}/course_lib/bits.py"))
    assert kept["why"] == "raised an error in course_lib/bits.py"


def test_a_miss_is_printed_with_its_reason_and_is_the_exit_status(monkeypatch, capsys):
    fine, held, paid, harm = (next(c for c in HERE if c.held == h) for h in (False, True, False, False))
    tried = {
        "fine": cheats.Tried(fine, how="zeros"),
        "held": cheats.Tried(held, held=5.0, how="imports os"),
        "paid": cheats.Tried(paid, points=5.0),
        "held without need": cheats.Tried(fine, held=5.0),
        "harm": cheats.Tried(harm, harm="the neighbour in the same room: 0 points"),
    }
    said = {}
    for name, one in tried.items():
        monkeypatch.setattr(cheats, "run", lambda todo, seed, one=one: [one])
        status = cheats.main([str(one.cheat.exercise)], SEED, quick=True)
        said[name] = status, capsys.readouterr().out
    assert [status for status, _ in said.values()] == [0, 0, 1, 1, 1]
    assert "0 points" in said["fine"][1] and "zeros" in said["fine"][1] and "imports os" in said["held"][1]
    assert all("MISSED" in said[name][1] for name in ("paid", "held without need", "harm"))


@pytest.mark.parametrize("gpus", ["0,1,2,3", "3", ""])
def test_side_by_side_each_is_tried_once_and_those_that_take_a_gpu_have_it_to_themselves(monkeypatch, gpus):
    begun, every_row = [], multiprocessing.get_context("fork").Barrier(32 // cheats.PROCESSORS)

    def where(todo, seed):
        for cheat in todo:
            if not begun:  # in this process: nobody goes on before each row has one
                every_row.wait(60)
                begun.append(cheat)
            start = time.monotonic()
            time.sleep(0.002 if cheat.alone else 0.001)
            yield cheats.Tried(cheat, how=f"{os.environ['CUDA_VISIBLE_DEVICES']} {start} {time.monotonic()}")

    monkeypatch.setattr(cheats, "in_a_row", where)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(32)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    tried = list(cheats.run(CHEATS, SEED))
    assert sorted(str(one.cheat) for one in tried) == sorted(map(str, CHEATS))
    spans = [(one.cheat.alone, *one.how.rsplit(" ", 2)) for one in tried]
    spans = [(takes_it, gpu, float(start), float(end)) for takes_it, gpu, start, end in spans]
    assert {gpu for _, gpu, _, _ in spans} == set(gpus.split(","))
    for _, gpu, start, end in (span for span in spans if span[0]):
        beside = [span for span in spans if span[1] == gpu and span[2] < end and span[3] > start]
        assert len(beside) == 1, beside


def test_rows_side_by_side_share_the_processors_for_judging(monkeypatch):
    def threads(todo, seed):
        for cheat in todo:
            yield cheats.Tried(cheat, how=f"{torch.get_num_threads()} {os.environ['OMP_NUM_THREADS']}")

    monkeypatch.setattr(cheats, "in_a_row", threads)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(32)))
    share = cheats.PROCESSORS
    assert {one.how for one in cheats.run(HERE[:4], SEED)} == {f"{share} {share}"}


def lacks_nothing(seed):
    return ""


def test_a_cheat_that_hangs_or_ends_the_referee_is_a_miss_and_the_next_one_is_tried(monkeypatch, capfd):
    def attempt(cheat, seed):
        if cheat == first:
            os._exit(1)
        if cheat == second:
            time.sleep(60)
        if cheat == third:
            raise ValueError("forged")
        return cheats.Tried(cheat, how=str(os.getpid()))

    first, second, third = HERE[:3]
    monkeypatch.setattr(cheats, "LIMIT_S", 0.5)
    monkeypatch.setattr(cheats, "attempt", attempt)
    monkeypatch.setattr(cheats, "neighbour_alone", lacks_nothing)
    tried = list(cheats.in_a_row(HERE[:6], SEED))
    assert [one.harm for one in tried[:3]] == [
        "the referee: the process ended with 1",
        "the referee: it did not end in 0.5 s",
        "the referee: ValueError: forged",
    ]
    assert [one.missed for one in tried[3:]] == [""] * 3 and len({one.how for one in tried[3:]}) == 1
    told = capfd.readouterr().err
    assert told.count("most recent call first") == 1 and " in attempt\n" in told  # where the one that hung was


def test_a_neighbour_without_points_is_a_miss_of_this_cheat_and_of_the_one_before(monkeypatch):
    monkeypatch.setattr(cheats, "_tried", lambda apart, cheat, seed: (cheats.Tried(cheat, **said[cheat]), True))
    monkeypatch.setattr(cheats, "_asked", lambda apart, function, *args: (True, "3 points"))
    said = {cheat: {} for cheat in HERE[:4]}
    said[HERE[1]] = {"neighbour": "4 points", "harm": "the neighbour in the same room: 4 points"}
    assert [tried.missed for tried in cheats.in_a_row(HERE[:4], SEED)] == [
        "the neighbour in the next room: 4 points",
        "the neighbour in the same room: 4 points",
        "",
        "the neighbour in the next room: 3 points",
    ]


@pytest.mark.parametrize("exercise", sorted({cheat.exercise for cheat in CHEATS if "gpu" in cheat.tiers}))
def test_where_the_cheats_of_an_exercise_ran_on_an_h200_none_earned_a_point(exercise):
    rows = kept("bank_cheats", exercise)
    if not rows:
        pytest.skip(f"not yet recorded on a GPU: run `{command('bank_cheats', exercise)}`")
    assert {row["verdict"] for row in rows} <= {"0 points", "held"}
    known = {str(c) for c in CHEATS if c.exercise == exercise and "gpu" in c.tiers}
    recorded = {row["cheat"] for row in rows}
    if recorded != known:
        pytest.skip(f"not yet run on a GPU as they are now: {', '.join(sorted(known ^ recorded))}")


@needs_bubblewrap
@pytest.mark.slow
def test_every_cheat_earns_nothing_and_harms_nobody():
    assert not missed(HERE, SEED + 2)


@needs_bubblewrap
@pytest.mark.slow
def test_no_cheat_of_a_kernel_exercise_earns_a_point_when_the_text_is_not_read(monkeypatch):
    for room, readings in ((replay, ("added", "replacing")), (audit, ("added", "replacing", "suspicious"))):
        for name in readings:
            monkeypatch.setattr(room, name, lambda *_: [])
    # programs come one after the other in the interpreter: only the text tells of sums in an order that is not settled
    kernels = [cheat for cheat in HERE if get(cheat.exercise).asks_for_kernels and cheat.family != "race"]
    assert len(kernels) > 60
    rewarded = [f"{one.cheat}: {one.points:g} points" for one in cheats.run(kernels, SEED + 3) if one.points]
    assert not rewarded
