import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import attention_sweep
from course_lib.kernels.attention.tuning import GROUPS, SHORT_HEADS, SIDE_BY_SIDE

COURSE = Path(__file__).resolve().parents[2]
SWEEP = '''
"""A sweep whose second job fails, whose third ends its process, and whose fifth never answers."""
import os, time
from benchmarks import sweeping

sweeping.PATIENCE = 6

def jobs(kinds):
    return [{"kind": kind, "n": n} for n in range(6) for kind in kinds]

def once(job):
    if job["n"] == 1:
        raise ValueError("no compiler takes it")

def measured(job):
    if job["n"] == 1:
        raise ValueError("wrong")
    if job["n"] == 2:
        os._exit(3)
    if job["n"] == 4:
        time.sleep(600)
    return {"us": job["n"]}

if __name__ == "__main__":
    sweeping.main("some_sweep", ["a", "b"], jobs, once, measured)
'''


@pytest.mark.slow
def test_what_fails_crashes_or_hangs_costs_its_own_line_and_no_other(tmp_path):
    (tmp_path / "some_sweep.py").write_text(SWEEP)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{COURSE}"}
    command = [sys.executable, "-m", "some_sweep", "--seconds", "80", "--kinds", "b"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    lines = [json.loads(text) for text in done.stdout.splitlines()]
    assert [line["n"] for line in lines] == list(range(6)) and {line["kind"] for line in lines} == {"b"}
    told = {line["n"]: line.get("failed") for line in lines}
    assert told[1] == "ValueError: wrong" and told[2] == "crashed, 3" and told[4].startswith("no answer")
    assert [line["us"] for line in lines if "us" in line] == [0, 3, 5]


def test_the_sweep_of_attention_tries_what_it_says_and_what_the_tables_have():
    def tried(kernel):
        return [attention_sweep.blocks_of(kernel, blocks) for blocks in attention_sweep.CANDIDATES[kernel]]

    dealt, groups = tried("forward groups dealt"), tried("forward groups")
    assert all(one.dealt and one.held == 2 and one.consumers in (2, 3) for one in dealt)
    assert not any(one.dealt for one in groups) and {one.consumers for one in groups} == {2, 3}
    assert {one for one in GROUPS.values() if one.lazy} <= {*dealt, *groups}
    short_heads = {blocks for entries in SHORT_HEADS.values() for _, blocks in entries}
    assert short_heads <= set(tried("forward few keys"))
    assert {replace(one, most=0, most_for_one=0, most_for_any=0) for one in SIDE_BY_SIDE.values()} <= set(
        tried("side by side")
    )
