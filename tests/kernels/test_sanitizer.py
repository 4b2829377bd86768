"""compute-sanitizer over small odd shapes of every kernel: no byte outside, no two threads at one place unordered."""

import inspect
import re
import shutil
import subprocess
import sys

import pytest
import torch

from course_lib import results
from course_lib.device import TIER
from course_lib.kernels.attention import groups_dkdv, groups_forward, groups_onepass
from course_lib.kernels.linear_gelu import pingpong
from tests.kernels import jobs_apart
from tests.kernels.small_odd import FAMILIES

HERE = [name for name in FAMILIES if TIER == "gpu" or name not in ("groups", "additions")]
GLUON = ("groups", "additions", "gelu")  # their kernels have jobs for warps; of all others racecheck has nothing to say
SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed")
# One of what the summary counts: a first access, and those that race with it. The forms that only a flag asks for
# begin with "Potential".
REPORT = re.compile(r"Race reported.*(?:\n\W*and (?:Read|Write) access.*)*|Potential .*hazard.*")
ACCESS = re.compile(r"(?:Read|Write) access at (\w+)\+0x\w+ in (?:\S*/)?(\w+\.py):(\d+)")


# torch's thread for backward passes says so where a product of cuBLAS is the first that it does.
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no current CUDA context")
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(one, marks=[pytest.mark.slow] if TIER == "interpreter" and n > 1 else [])
        for n, one in enumerate(HERE)
    ],
)
def test_small_odd_shapes_are_right(family):
    torch.manual_seed(0)
    assert FAMILIES[family]() < 4e-3


def starts_of_jobs() -> set[tuple[str, str, int]]:
    """Where Triton itself hands jobs to warps: it writes a byte for each warp, and the warp reads it. Where that is
    done under an `if` of the compiler's, it may be told as the line of this.

    Between the two all wait at barrier 1. racecheck does not follow that barrier where the two sides reach it in
    different places of the program: it reports the same of jobs that share nothing (benchmarks/notes/attention.md).
    """
    places = set()
    for module, name in (
        (groups_forward, "forward_in_groups_kernel"),
        (groups_dkdv, "dkdv_in_groups_kernel"),
        (groups_onepass, "one_pass_in_groups_kernel"),
        (pingpong, "gelu_pingpong_kernel"),
        (pingpong, "slope_pingpong_kernel"),
        (jobs_apart, "jobs_apart_kernel"),
    ):
        lines, first = inspect.getsourcelines(getattr(module, name).fn)
        for number, line in enumerate(lines, first):
            if line.startswith("def ") or "gl.warp_specialize(" in line:
                places.add((name, module.__file__.rsplit("/", 1)[-1], number))
            if line.startswith("    if ") and "gl.warp_specialize(" in lines[number - first + 1]:
                places.add((name, module.__file__.rsplit("/", 1)[-1], number))
    return places


def doubts(said: str, jobs: bool) -> list[str]:
    """Why this is not the report of a program without races. With jobs their starts are allowed, and nothing else."""
    counts = [int(count) for count in SUMMARY.findall(said)]
    if not counts:
        return ["no summary: the tool has not ended, or counts in other words"]
    found, reports = [], REPORT.findall(said)
    if sum(counts) != len(reports):  # one that cannot be read must not pass for none
        found.append(f"{sum(counts)} hazards in the summary, {len(reports)} that can be read")
    known = starts_of_jobs() if jobs else set()
    return found + [report for report in reports if not _explained(report, known)]


def _explained(report: str, known: set[tuple[str, str, int]]) -> bool:
    """Every access is told with kernel, file and line, and is one of the known."""
    places = [(kernel, file, int(line)) for kernel, file, line in ACCESS.findall(report)]
    return len(places) == report.count(" access") >= 2 and known.issuperset(places)


def summary(hazards: int) -> str:
    word = "hazard" if hazards == 1 else "hazards"
    return f"========= RACECHECK SUMMARY: {hazards} {word} displayed ({hazards} errors, 0 warnings)\n"


def race(*places: tuple[str, str, int]) -> str:
    """A report as racecheck writes it."""
    first, *others = (f"access at {kernel}+0x1{i}0 in {file}:{line}" for i, (kernel, file, line) in enumerate(places))
    rest = "".join(f"=========     and Write {other} [25 hazards]\n" for other in others)
    return f"========= Error: Race reported between Read {first}\n{rest}=========\n"


def test_a_race_inside_of_a_job_is_told_from_the_start_of_jobs():
    starts = sorted(starts_of_jobs())
    assert len(starts) == 16
    (kernel, file, line) = starts[0]
    start = race(starts[0], starts[1], starts[0])
    assert doubts(start + start + summary(2), jobs=True) == []
    inside = race(starts[0], starts[1], (kernel, file, line - 40))
    (doubt,) = doubts(start + inside + summary(2), jobs=True)
    assert f"{file}:{line - 40}" in doubt
    assert len(doubts(start + summary(1), jobs=False)) == 1, "a kernel without jobs has none to start"


def test_a_report_that_cannot_be_read_is_no_clean_one():
    start = race(*sorted(starts_of_jobs())[:2])
    without_lines = re.sub(r" in \w+\.py:\d+", "", start)
    half = re.sub(r" in \w+\.py:\d+", "", start, count=1)
    for jobs in (True, False):
        assert doubts(summary(0), jobs) == []
        assert doubts("", jobs) and doubts("largest relative error 0.002", jobs)
        assert doubts(summary(1), jobs) == ["1 hazards in the summary, 0 that can be read"]
        assert doubts(without_lines + summary(1), jobs) and doubts(half + summary(1), jobs)
        assert doubts(start + summary(2), jobs) and doubts(start + summary(0), jobs)
        assert doubts("Error: Potential RAW hazard detected at __shared__ 0xf4\n" + summary(1), jobs)
        assert doubts(summary(0) + "Error: Race reported\n" + summary(1), jobs)
    assert doubts(start.splitlines()[0] + "\n" + summary(1), jobs=True), "a race takes two"


def sanitized(tool: str, *module: str) -> str:
    """What the tool and the program print."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer comes with the CUDA toolkit and is not here")
    all_of_it = "--print-limit", "100000"  # what is not printed cannot be read
    command = [sanitizer, "--tool", tool, *all_of_it, sys.executable, "-W", "ignore", "-m", *module]
    done = subprocess.run(command, cwd=results.ROOT, capture_output=True, text=True, timeout=300)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-3000:]  # the program's own; a traceback has its last line too
    return said


def test_a_program_that_ends_with_an_error_is_no_clean_one(tmp_path, monkeypatch):
    """Its traceback has the line that prints the error, and the tool counts no error of the device."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text('#!/bin/sh\nshift 4\n"$@" && : || exit $?\n')
    tool.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(tool))
    assert "largest relative error" in sanitized("memcheck", "tests.kernels.small_odd", "pointwise")
    with pytest.raises(AssertionError, match="largest relative error"):
        sanitized("memcheck", "tests.kernels.small_odd", "no_such_family")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_sanitizer_finds_nothing(family, tool):
    said = sanitized(tool, "tests.kernels.small_odd", family)
    assert "largest relative error" in said, said[-3000:]
    if tool == "memcheck":
        assert "ERROR SUMMARY: 0 errors" in said, said[-3000:]
    else:
        assert not doubts(said, jobs=family in GLUON), said[-3000:]


@pytest.mark.gpu
@pytest.mark.slow
def test_jobs_that_share_nothing_are_reported_where_jobs_start_and_nowhere_else():
    said = sanitized("racecheck", "tests.kernels.jobs_apart")
    assert "counted [9.0, 9.0, 2.25]" in said and not doubts(said, jobs=True), said[-3000:]
