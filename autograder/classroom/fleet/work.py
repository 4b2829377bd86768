"""One task: judge a batch, text after text, and write verdict files."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import signal
import sys
import time

from autograder.classroom.fleet import plans, slurm
from autograder.classroom.fleet.plans import Plan, Text
from autograder.classroom.taken import VERDICTS, Item
from autograder.classroom.verdicts import Judging, beside
from course_lib import device

ROOM = 1 << 18  # bytes that must be free before anything is judged; a verdict with its picture takes a quarter of them
FULL = (errno.ENOSPC, errno.EDQUOT)
PR_SET_PDEATHSIG = 1


class NoDisk(OSError):
    """Verdicts cannot be written; the message says so to people."""


def main(plan: Plan, task: int) -> int:
    """Exit status 0 when every text of the batch has its verdicts."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside, before all was judged"))
    if not plan.slurm:  # workers end with the run that started them
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    print(f"task {plan.number}:{task} on {platform.node()}, {device.machine().name}", flush=True)
    if plan.tier == "gpu" and device.TIER != "gpu":
        print("A GPU was asked for, and this task sees none.", flush=True)
        return 1
    alone = slurm.alone() if plan.slurm else plan.tier == "gpu"
    start_s, began, judged, troubles = _age_s(), time.monotonic(), 0, 0
    try:
        for text in plan.batches[task]:
            if not text.done(plans.there()):
                troubles += _judged(text, alone)
                judged += 1
    except NoDisk as error:
        print(error, flush=True)
        return 1
    record = {"host": platform.node(), "machine": device.machine().name, "judged": judged}
    record |= {"start_s": round(start_s, 2), "graded_s": round(time.monotonic() - began, 2)}
    with contextlib.suppress(OSError):  # the verdicts are there; the next plan then knows less about times
        plan.record(task).write_text(json.dumps(record), encoding="utf-8")
    print(f"task {plan.number}:{task} judged {judged} of {len(plan.batches[task])}", flush=True)
    return 1 if troubles else 0


def _judged(text: Text, alone: bool) -> int:
    """Write every verdict of a text. Returns how many exercises could not be judged."""
    room()
    began = time.monotonic()
    found = ((item, _judging(item, alone)) for item in text.who)
    item, judging = next(((item, judging) for item, judging in found if judging), (text.who[0], None))
    if judging is None:
        print(f"{item.student}: taken back since, or handed in again and not to be read", flush=True)
        return 0
    with judging:
        try:
            unjudged = [asked.name for asked in judging.asked if "file" not in judging.verdict(asked)]
        except OSError as error:
            if error.errno in FULL:
                raise NoDisk(no_disk(error)) from error
            raise
    says = f", but not {', '.join(unjudged)}: see the fault above" if unjudged else ""
    print(f"{item.student}: judged in {time.monotonic() - began:.1f} s{says}", flush=True)
    return len(unjudged)


def _judging(item: Item, alone: bool) -> Judging | None:
    """None where the hand-in is no longer there, or can no longer be read: students hand in while a task waits."""
    try:
        return item.judging(alone)
    except (OSError, ValueError):
        return None


def room() -> None:
    """NoDisk where a verdict cannot be written: seen before a submission is judged, and not after."""
    probe = beside(VERDICTS / ".room")
    try:
        VERDICTS.mkdir(parents=True, exist_ok=True)
        with probe.open("wb") as file:
            file.write(bytes(ROOM))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise NoDisk(no_disk(error)) from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def no_disk(error: OSError) -> str:
    why = "the disk is full" if error.errno in FULL else error.strerror
    return f"Verdicts cannot be written to {VERDICTS}: {why}. Mend that, and say the same command again."


def _age_s() -> float:
    """Seconds since this process began."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
