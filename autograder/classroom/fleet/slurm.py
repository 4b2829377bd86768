"""What is asked of Slurm: one job array a plan, which of its tasks are alive, and whether a task has its GPU alone."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
import subprocess
import sys

from autograder.classroom.fleet.plans import Plan
from course_lib.places import ROOT

MEMORY = {"interpreter": "6G", "gpu": "24G"}  # of the host, for a task
PROCESSORS = {"interpreter": 1, "gpu": 8}
MARGIN, MARGIN_MIN = 4, 10  # times as long as expected, and minutes more, until Slurm ends a task


class NoAnswer(RuntimeError):
    """It is not known whether Slurm did what was asked."""


class Refused(NoAnswer):
    """Slurm did not do what was asked; the message is its own."""


def asked(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        instead = "" if command[0] == "squeue" else " Without --slurm, workers run here."
        raise Refused(f"There is no {command[0]} on this machine.{instead}") from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{command[0]} did not answer in 60 s.") from None
    if done.returncode:
        raise Refused(f"{command[0]} refused: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def options(wanted: str) -> dict[str, str]:
    """ "partition=gpu,gres=gpu:1,exclusive" as options of sbatch; a comma that no name follows belongs to a value."""
    pieces = re.split(r",(?=[a-z][a-z-]*(?:=|,|$))", wanted) if wanted else []
    return dict(piece.partition("=")[::2] for piece in pieces)


def tier(wanted: str) -> str:
    """The tier that the nodes are asked for. Only a GPU of one's own can time."""
    chosen = options(wanted)
    gpu = any("gpu" in chosen.get(name, "") for name in ("gres", "gpus", "gpus-per-task", "tres-per-task"))
    return "gpu" if gpu or any(name.startswith("gpus") for name in chosen) else "interpreter"


def name(plan: Plan) -> str:
    """Of the array: by it an array is found again, also by a run that did not live to learn its number."""
    course = hashlib.sha256(str(ROOT).encode()).hexdigest()[:6]
    return f"fleet-{plan.lesson}-{plan.number}-{course}"


def most_tasks() -> int:
    found = re.search(r"MaxArraySize\s*=\s*(\d+)", asked(["scontrol", "show", "config"]))
    return max(1, int(found.group(1)) - 1) if found else 1000


def line(plan: Plan, expected_s: float) -> list[str]:
    """The command that submits the plan. expected_s: of the largest batch."""
    kind = "gpu" if plan.tier == "gpu" else "interpreter"
    minutes = math.ceil(MARGIN * expected_s / 60) + MARGIN_MIN
    chosen = {"time": str(minutes), "mem": MEMORY[kind], "cpus-per-task": str(PROCESSORS[kind])} | options(plan.slurm)
    chosen |= {"array": f"0-{len(plan.batches) - 1}", "job-name": name(plan), "chdir": str(ROOT)}
    chosen |= {"output": str(plan.log("%a")), "open-mode": "append", "requeue": ""}
    work = [sys.executable, "-m", "autograder", "fleet", plan.lesson, "--task", f"{plan.number}:$SLURM_ARRAY_TASK_ID"]
    command = " ".join(word if "$" in word else shlex.quote(word) for word in work)
    return ["sbatch", "--parsable", *(f"--{k}={v}" if v else f"--{k}" for k, v in chosen.items()), f"--wrap={command}"]


def alive(plans: list[Plan]) -> tuple[dict[tuple[int, int], bool], set[str]]:
    """(plan, task) -> whether it runs, for tasks that run or wait; and why those that wait do so, in Slurm's words."""
    by_name = {name(plan): plan.number for plan in plans}
    if not by_name:
        return {}, set()
    told = asked(["squeue", "-h", "-r", "-o", "%j|%K|%T|%r", f"--name={','.join(by_name)}"])
    found, reasons = {}, set()
    for row in told.splitlines():
        job, task, state, reason = row.split("|", 3)
        if job in by_name and task.isdigit():
            running = state in ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED")
            found[by_name[job], int(task)] = running
            reasons |= set() if running or reason == "None" else {reason}
    return found, reasons


def alone() -> bool:
    """Whether Slurm gave this job a whole GPU, or the whole node."""
    if {"SLURM_SHARDS_ON_NODE", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"} & os.environ.keys():
        return False
    if int(os.environ.get("SLURM_GPUS_ON_NODE") or 0) > 0:
        return True
    return "OverSubscribe=NO" in asked(["scontrol", "show", "job", os.environ["SLURM_JOB_ID"]]).split()
