"""Does the referee's clock, which a submission cannot touch, agree with device events around the same calls?

The events are recorded in the worker, so a submission could forge them; this one is honest.
"""

from dataclasses import replace
from statistics import median

from autograder import exercise as exercises
from autograder.bank import find
from autograder.exercise import Call, Case
from autograder.referee import clock
from autograder.referee.room import Room, Worker
from autograder.referee.submission import Cell, Submission

MEASURES = (
    "autograder/referee/clock.py",
    "autograder/referee/rounds.py",
    "autograder/referee/room.py",
    "autograder/referee/slabs.py",
    "autograder/inside/slabs.py",
    "autograder/inside/worker.py",
)
SMALL = ((2**20, 1), (2**22, 1), (2**24, 1), (2**25, 1))
SIZES = (*SMALL, (2**24, 16), (2**26, 1), (2**28, 1), (2**27, 16), (2**28, 16), (2**29, 16))
# exercise, an honest answer, and what it is timed on: many sizes of one kernel, and what two others earn points on
KERNELS = {
    "roofline.chain": ("unrolled", [Case(f"{n} x {r}", lambda d, n=n, r=r: _call(d, n, r)) for n, r in SIZES]),
    "roofline.softmax": ("one_block", None),
    "roofline.matmul": ("grouped", None),
}


def run() -> list[dict]:
    """One row a size: medians a call by the clock and by events in the same rounds, in us, and their ratio."""
    yard, rows = clock.yardsticks(), []
    for name, (answer, cases) in KERNELS.items():
        exercise, source = exercises.get(name), find(f"{name}/right/{answer}").source
        cases = tuple(cases or exercise.speed.cases)
        # points depend on each of these times, so it takes as many rounds as the referee takes where they do
        exercise = replace(exercise, speed=replace(exercise.speed, cases=cases, full=1.3, none=0.7))
        with Room(Submission((Cell("right", source),))) as room:
            for case in cases:
                setting = clock.setting(exercise, case, 1)
                yard.measure(setting)
                worker = Worker(room)
                worker.load(exercise.entry)
                rows.append({"kernel": name} | _row(setting, clock.measure(worker, setting, yard), yard))
                worker.end()
    return rows


def _call(draw, n: int, repeat: int):
    return Call({"x": draw.normal(n), "repeat": repeat, "out": draw.empty(n)}, f"n = {n}, repeat = {repeat}")


def _row(setting, measured, yard) -> dict:
    took, clock_s, events_s = measured.timed, median(measured.calls_s), median(measured.said_s)
    return {
        "name": setting.sizes,
        "calls": setting.calls,
        "rounds": len(measured.said_s),
        "around_a_round_us": yard.alone[setting.key].around_s * 1e6,
        "events_us": events_s * 1e6,
        "clock_us": clock_s * 1e6,
        "low_us": took.low_s * 1e6,
        "high_us": took.high_s * 1e6,
        "ratio": clock_s / events_s,
        "slowed": measured.slowed,
        "took_s": measured.took_s,
        "note": measured.noisy,
    }
