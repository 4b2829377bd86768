"""What Nsight Compute prints becomes a row a kernel; where it is not installed, or fails, nothing is recorded."""

import os
import sys

import pytest

from benchmarks import __main__ as command
from benchmarks import counters
from benchmarks.against import Red

NAMES = ["ID", "Kernel Name", *counters.METRICS.values()]
UNITS = ["", "", "ns", "cycle", "%", "%", "", "", "", ""]
LONG = ["0", "one_pass_in_groups_kernel(int, float)", "1,130,000", "1000", "64.5", "8", "20000", "4000", "5000", "500"]
SHORT = ["1", "finish_kernel", "20000", "100", "0", "90", "0", "0", "0", "0"]


def printed(*lines) -> str:
    rows = [",".join(f'"{part}"' for part in line) for line in lines]
    return "\n".join(["==PROF== Connected to process 7", "what the program prints", *rows])


def test_a_row_for_each_kernel_that_takes_its_share():
    (row,) = counters.rows_of("attention", printed(NAMES, UNITS, LONG, SHORT))
    assert row["name"] == "attention: one_pass_in_groups_kernel" and (row["value"], row["unit"]) == (1130.0, "us")
    assert (row["tensor cores %"], row["DRAM %"]) == (64.5, 8.0)
    assert row["banks %"] == 75.0 and row["second wavefronts %"] == 10.0


def test_where_nothing_was_counted_there_is_no_row():
    with pytest.raises(Red, match=r"no kernel of softmax: .*No kernels were profiled"):
        list(counters.rows_of("softmax", "==WARNING== No kernels were profiled."))


def test_a_counter_that_is_missing_is_told():
    with pytest.raises(Red, match=r"asked of softmax: .*n/a"):
        list(counters.rows_of("softmax", printed(NAMES, UNITS, ["n/a" if part == "8" else part for part in LONG])))
    with pytest.raises(Red, match="did not count all that was asked of softmax"):
        list(counters.rows_of("softmax", printed(NAMES[:-1], UNITS[:-1], LONG[:-1])))


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program in ncu's place: it keeps how it was called, and prints or fails."""

    def make(text: str, code: int = 0):
        path = tmp_path / "ncu"
        (tmp_path / "told").write_text(text)
        path.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat {tmp_path}/told\nexit {code}\n')
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return tmp_path / "asked"

    return make


def test_each_case_runs_in_a_process_whose_clocks_are_left_alone(program, monkeypatch):
    asked = program(printed(NAMES, UNITS, LONG))
    monkeypatch.setattr(counters, "CASES", {"a case": None})
    assert [row["name"] for row in counters.run()] == ["a case: one_pass_in_groups_kernel"]
    words = asked.read_text()
    assert "--clock-control none" in words and "--profile-from-start off" in words
    assert words.endswith(f"{sys.executable} -m benchmarks.counters a case\n")


def test_a_failure_of_ncu_is_told(program, monkeypatch):
    program("==ERROR== no permission to read counters", 1)
    monkeypatch.setattr(counters, "CASES", {"a case": None})
    with pytest.raises(Red, match=r"1 at a case: .*no permission"):
        counters.run()


def test_without_ncu_the_section_is_passed_over_unless_it_is_named(monkeypatch):
    monkeypatch.setattr(counters, "ncu", lambda: None)
    assert not command._able("counters") and command._able("softmax")
    with pytest.raises(Red, match="not installed here"):
        counters.run()
