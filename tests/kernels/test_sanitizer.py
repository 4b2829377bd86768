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
from course_lib.kernels.attention import groups_dkdv, groups_forward
from course_lib.kernels.linear_gelu import pingpong
from tests.kernels import jobs_apart
from tests.kernels.small_odd import FAMILIES

HERE = [name for name in FAMILIES if TIER == "gpu" or name != "groups"]
RACE = re.compile(r"(?:Read|Write) access at (\w+)\+0x\w+ in (\w+\.py):(\d+)")


@pytest.mark.parametrize("family", HERE)
def test_small_odd_shapes_are_right(family):
    torch.manual_seed(0)
    assert FAMILIES[family]() < 4e-3


def starts_of_jobs() -> set[tuple[str, str, int]]:
    """Where Triton itself hands jobs to warps: it writes a byte for each warp, and the warp reads it.

    Between the two all wait at barrier 1. racecheck does not follow that barrier where the two sides reach it in
    different places of the program: it reports the same of jobs that share nothing (benchmarks/notes/attention.md).
    """
    places = set()
    for module, name in (
        (groups_forward, "forward_in_groups_kernel"),
        (groups_dkdv, "dkdv_in_groups_kernel"),
        (pingpong, "gelu_pingpong_kernel"),
        (pingpong, "slope_pingpong_kernel"),
        (jobs_apart, "jobs_apart_kernel"),
    ):
        lines, first = inspect.getsourcelines(getattr(module, name).fn)
        for number, line in enumerate(lines, first):
            if line.startswith("def ") or "gl.warp_specialize(" in line:
                places.add((name, module.__file__.rsplit("/", 1)[-1], number))
    return places


def races(said: str) -> list[tuple[str, str, int]]:
    """kernel, file and line of each access that races, but for the starts of jobs."""
    known = starts_of_jobs()
    found = [(kernel, file, int(line)) for kernel, file, line in RACE.findall(said)]
    return [place for place in found if place not in known]


def test_a_race_inside_of_a_job_is_told_from_the_start_of_jobs():
    (kernel, file, line) = min(starts_of_jobs())
    report = f"Error: Race reported between Read access at {kernel}+0x110 in {file}:{line}\n"
    assert len(starts_of_jobs()) == 10 and races(report) == []
    inside = report + f"    and Write access at {kernel}+0xac10 in {file}:{line - 40} [25 hazards]\n"
    assert races(inside) == [(kernel, file, line - 40)]


def sanitized(tool: str, *module: str) -> str:
    """What the tool and the program print."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer comes with the CUDA toolkit and is not here")
    command = [sanitizer, "--tool", tool, sys.executable, "-W", "ignore", "-m", *module]
    done = subprocess.run(command, cwd=results.ROOT, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


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
        assert "RACECHECK SUMMARY" in said and not races(said), said[-3000:]


@pytest.mark.gpu
@pytest.mark.slow
def test_jobs_that_share_nothing_are_reported_where_jobs_start_and_nowhere_else():
    said = sanitized("racecheck", "tests.kernels.jobs_apart")
    assert "counted [9.0, 9.0, 2.25]" in said and "RACECHECK SUMMARY" in said and not races(said), said[-3000:]
