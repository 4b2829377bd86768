"""The bank against the clock: what check_speed gives to right and to slow submissions. Needs a GPU.

A slow one must earn less than all points, and of every timed exercise at least one right one must earn them all:
otherwise the floor or its share that is asked for is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from autograder import bank
from autograder.bank import Entry, Result
from autograder.bank.recording import keep
from autograder.call.in_process import examine_speed
from autograder.exercise import get
from course_lib import device


@dataclass(frozen=True)
class Pace(Result):
    points: float = 0.0
    out_of: float = 0.0
    share: float = 0.0  # of the floor, or of the reference's speed, at the worst size


def time_entry(entry: Entry, seed: int, quick: bool = False) -> Pace:
    """Time one submission in this process; accepted: it was right, so it was timed."""
    start = time.perf_counter()
    exercise = get(entry.exercise)
    verdict = examine_speed(exercise, entry.function, seed)
    share = min((row.share for row in verdict.rows), default=0.0)
    took = time.perf_counter() - start
    return Pace(
        entry,
        accepted=bool(verdict.rows),
        says=verdict.note,
        seconds=took,
        points=verdict.points,
        out_of=verdict.out_of,
        share=share,
    )


def surprises(paces: list[Result]) -> list[str]:
    """What is not as it should be, a sentence each."""
    said = [f"{p.entry} was not timed: {p.says}" for p in paces if not p.accepted]
    timed = [p for p in paces if p.accepted]
    said += [f"{p.entry} earns all points" for p in timed if p.entry.kind == "slow" and p.points == p.out_of]
    full = {p.entry.exercise for p in timed if p.entry.kind == "right" and p.points == p.out_of}
    missing = sorted({p.entry.exercise for p in paces} - full)
    return said + [f"no right submission of {name} earns all points" for name in missing]


def row(pace: Pace) -> dict:
    entry = pace.entry
    return {
        "exercise": entry.exercise,
        "kind": entry.kind,
        "submission": entry.name,
        "points": pace.points,
        "out_of": pace.out_of,
        "share": pace.share,
    }


def main(names: Iterable[str], seed: int, record: str | None = None) -> int:
    if device.TIER != "gpu":
        print("Points for speed need a CUDA device, and this machine has none.")
        return 2
    todo = [entry for entry in bank.entries(names, ("right", "slow")) if get(entry.exercise).speed]
    paces = []
    for pace in bank.run(todo, seed, task=time_entry):
        paces.append(pace)
        earned = f"{pace.points:g} of {pace.out_of:g}, share {pace.share:.2f}" if pace.accepted else pace.says
        print(f"{pace.entry!s:<50} {earned}", flush=True)
    wrong = surprises(paces)
    print("\n".join(wrong or ["as expected"]))
    if record and not wrong:
        keep("bank_speed", map(row, paces), record)
    return 1 if wrong or not paces else 0
