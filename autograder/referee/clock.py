"""Time that a submission cannot touch: our clock around rounds of work on memory that it has never seen.

A round tells its sizes, then sends the handles of fresh slabs together with "go", waits for the report, and reads a few
elements of every output; the time when those have arrived is the end. Then every output is checked, so no call can
have been skipped. What a round costs when one call does nothing is measured in a worker that holds no submission, and
subtracted. The reference kernel and such empty rounds run turn by turn with the submission (A B E, B A E): when the
reference is slower than it was alone, something else slowed the device down, and nothing is concluded.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from autograder.exercise import Case, Exercise
from autograder.judging import tolerance
from autograder.judging.verdict import Timed
from autograder.judging.work import judge_count, judge_work
from autograder.referee.room import Room, Worker
from autograder.referee.rounds import Round, bytes_of_a_call
from autograder.referee.submission import Cell, Submission
from course_lib import device
from course_lib.timing.sampling import half_width, median_interval

ROUND_S = 20e-3  # of work in one round, at the speed of the floor
ENOUGH_S = 20e-3  # of work in all rounds
MOST_CALLS = 400
SHARE_OF_MEMORY = 0.25  # of what is free, for one round
EMPTY_ROUNDS = 12
FEWEST, MOST = 6, 24  # rounds of a submission
NARROW = 0.015  # half of the interval; when it is wider, its slow end counts
NOISY = 1.03  # the reference may be this much slower than alone
WARM_S, ROUND_PATIENCE_S = 60.0, 30.0


class NotRight(Exception):
    """A timed call whose answer is wrong, late, or never came. The words are for the student."""


@dataclass(frozen=True)
class Setting:
    """One timed case and how many calls of it make a round."""

    exercise: Exercise
    case: Case
    seed: int
    calls: int
    floor_s: float
    sizes: str

    @property
    def key(self) -> tuple[str, str, int]:
        return self.exercise.name, self.case.name, self.calls

    def round(self, blank: bool = False) -> Round:
        return Round(self.exercise, self.case, self.seed, self.calls, device.DEVICE, device.TIER, blank)


def setting(exercise: Exercise, case: Case, seed: int) -> Setting:
    call = exercise.draw(case, seed, device.DEVICE, device.TIER, values=seed)
    floor_s = exercise.speed.floor_s(call.args, device.ceilings())
    fits = int(memory()[0] * SHARE_OF_MEMORY) // bytes_of_a_call(exercise, call)
    calls = max(1, min(fits, MOST_CALLS, math.ceil(ROUND_S / floor_s)))
    return Setting(exercise, case, seed, calls, floor_s, call.sizes)


def memory() -> tuple[int, int]:
    """Bytes of the device that are free, and that there are."""
    if device.DEVICE == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()
    return 1 << 30, 1 << 30


def limits_of(setting: Setting) -> tolerance.Limits:
    """Limits for outputs of this size, derived once: they hardly depend on the values."""
    call = setting.exercise.draw(setting.case, setting.seed, device.DEVICE, device.TIER, values=setting.seed)
    return tolerance.derive(setting.exercise, [(call.args, setting.exercise.oracle(call.args))])


@dataclass(frozen=True)
class Lap:
    """One round by our clock, and by the events that the worker says it saw: the latter is information only."""

    seconds: float
    events_s: float


def time_round(
    worker: Worker, setting: Setting, limits: tolerance.Limits | None, patience_s: float, calls: int | None = None
) -> Lap:
    """One round. With `limits`, every output of every call is checked; NotRight when one is wrong.

    `calls`: only so many of the round's calls are made, in slabs of the same size that hold no inputs.
    """
    round_ = setting.round(blank=calls is not None)
    try:
        round_.choose_gathered()
        _settle()
        worker.plan(round_, calls)
        start = time.perf_counter()
        report = worker.go(round_, patience_s)
        at_the_end = round_.gather()
        took = time.perf_counter() - start
        if limits is not None:
            _check(round_, report, at_the_end, limits)
        said = report.get("device_s")
        return Lap(took, float(said) if isinstance(said, int | float) else math.nan)
    finally:
        worker.close(round_.slabs)


def _check(round_: Round, report: dict, at_the_end: torch.Tensor, limits: tolerance.Limits) -> None:
    if report.get("error"):
        raise NotRight(f"raised {str(report['error'])[:300]}")
    why = round_.wrong(limits)
    if why:
        raise NotRight(why)
    if not torch.equal(at_the_end, round_.gather()):
        raise NotRight("an output was not there yet when the call said that it was done")


def _settle() -> None:
    if device.DEVICE == "cuda":
        torch.cuda.synchronize()


# ------------------------------------------------------------------------------------------- what is known to be right


@dataclass
class Yardsticks:
    """Workers that run our own code only: one that does nothing, and one for every reference kernel."""

    room: Room = field(default_factory=lambda: Room(Submission(()), answers=True).__enter__())
    workers: dict[str, Worker] = field(default_factory=dict)
    empty_s: dict[tuple, float] = field(default_factory=dict)
    alone_s: dict[tuple, float] = field(default_factory=dict)

    def nothing(self, exercise: Exercise) -> Worker:
        return self._worker(f"{exercise.entry}: nothing", exercise, f"def {exercise.entry}(*args): pass")

    def reference(self, exercise: Exercise) -> Worker | None:
        if not exercise.speed.reference:
            return None
        module, _, name = exercise.speed.reference.partition(":")
        return self._worker(exercise.name, exercise, f"from {module} import {name} as {exercise.entry}")

    def _worker(self, key: str, exercise: Exercise, source: str) -> Worker:
        if key not in self.workers:
            self.workers[key] = Worker(self.room)
            why_not = self.workers[key].load(exercise.entry, Submission((Cell(key, source),)))
            if why_not:
                raise RuntimeError(f"{key}: {why_not}")
        return self.workers[key]

    def measure(self, setting: Setting) -> None:
        """The empty round, and the reference alone; known ones are kept. No submission may be running."""
        if setting.key in self.empty_s:
            return
        idle = self.nothing(setting.exercise)
        # one call: the tensors of later ones are made while the device is busy
        empty = [time_round(idle, setting, None, ROUND_PATIENCE_S, calls=1).seconds for _ in range(2 + EMPTY_ROUNDS)]
        self.empty_s[setting.key] = float(np.median(empty[2:]))
        reference = self.reference(setting.exercise)
        if reference:
            took = [time_round(reference, setting, None, WARM_S).seconds for _ in range(1 + FEWEST)]
            self.alone_s[setting.key] = float(np.median(took[1:])) - self.empty_s[setting.key]

    def close(self) -> None:
        for worker in self.workers.values():
            worker.end()
        self.room.__exit__()

    def forget(self, setting: Setting) -> None:
        self.empty_s.pop(setting.key, None)
        self.alone_s.pop(setting.key, None)


@functools.cache
def yardsticks() -> Yardsticks:
    """Those of this process; the sandbox ends with it."""
    return Yardsticks()


# ------------------------------------------------------------------------------------------- a submission


@dataclass(frozen=True)
class Measured:
    timed: Timed
    slowed: float  # reference beside the submission over reference alone, less 1; 0 without a reference
    calls_s: tuple[float, ...]  # one call, round by round
    events_s: tuple[float, ...]  # the same as the worker saw it
    took_s: float  # for everything
    review: str = ""  # why a person should look

    @property
    def noisy(self) -> bool:
        return self.slowed > NOISY - 1


def measure(worker: Worker, setting: Setting, yard: Yardsticks) -> Measured:
    """Time a submission turn by turn with the reference; NotRight when a timed answer is wrong."""
    began, limits = time.perf_counter(), limits_of(setting)
    # compiles and tunes, on other data; what compiles later counts
    time_round(worker, replace(setting, calls=1), limits, WARM_S)
    time_round(worker, setting, limits, ROUND_PATIENCE_S)
    reference, idle = yard.reference(setting.exercise), yard.nothing(setting.exercise)
    ours: list[Lap] = []
    theirs: list[Lap] = []
    empty: list[Lap] = []
    while not _enough(_net(ours, empty)):
        ours_first = len(ours) % 2
        for turn in (ours_first, 1 - ours_first):
            if turn:
                ours.append(time_round(worker, setting, limits, ROUND_PATIENCE_S))
            elif reference:
                theirs.append(time_round(reference, setting, None, ROUND_PATIENCE_S))
        empty.append(time_round(idle, setting, None, ROUND_PATIENCE_S, calls=1))
    per_call = _net(ours, empty) / setting.calls
    events = [lap.events_s / setting.calls for lap in ours]
    low, high = median_interval(per_call)
    middle = float(np.median(per_call)) if half_width(per_call) <= NARROW else high
    reference_s = float(np.median(_net(theirs, empty))) / setting.calls if theirs else None
    slowed = reference_s * setting.calls / yard.alone_s[setting.key] - 1 if theirs else 0.0
    timed = Timed(setting.sizes, middle, low, high, setting.floor_s, reference_s)
    review = same_when_watched(worker, setting)
    return Measured(timed, slowed, tuple(per_call.tolist()), tuple(events), time.perf_counter() - began, review)


def _net(laps: Sequence[Lap], empty: Sequence[Lap]) -> np.ndarray:
    """What rounds took beyond the empty ones between them."""
    nothing = float(np.median([lap.seconds for lap in empty])) if empty else 0.0
    return np.maximum(0.0, np.array([lap.seconds for lap in laps]) - nothing)


def same_when_watched(worker: Worker, setting: Setting) -> str:
    """Run one more round as if it were timed, then once more on the same inputs with a profiler looking on.

    NotRight when the profiler saw work that is not the submission's own; otherwise why a person should look, or "":
    an honest answer is the same bit by bit, unless its sums depend on which program comes first.
    """
    round_ = setting.round()
    try:
        worker.plan(round_)
        worker.go(round_, ROUND_PATIENCE_S)
        unwatched = [out.clone() for out in round_.outputs(0).values()]
        worker.unmap()
        for out in round_.outputs(0).values():
            out.fill_(math.nan)
        worker.plan(round_, calls=1)
        report = worker.go(round_, ROUND_PATIENCE_S, watched=True)
        if report.get("error"):
            raise NotRight(f"raised {str(report['error'])[:300]} when a profiler looked on")
        outputs = list(round_.outputs(0).values())
        differing = sum(int((a != b).sum()) for a, b in zip(unwatched, outputs, strict=True))
        least = setting.exercise.speed.least_kernels
        least = least(round_.calls[0]) if least else 0
    finally:
        worker.close(round_.slabs)
    seen = report.get("seen") or {}
    refused, review = judge_count(seen, least) if least else ("", "")
    if setting.exercise.asks_for_kernels:
        refused, review = judge_work(setting.exercise, seen, False, "partly", (), ())
    if refused:
        raise NotRight(refused)
    if differing:
        review = f"{differing} elements were not the same when a profiler looked on. {review}"
    return review


def _enough(took: np.ndarray) -> bool:
    if len(took) < FEWEST or (took.sum() < ENOUGH_S and len(took) < MOST):
        return False
    return len(took) >= MOST or half_width(took) <= NARROW
