"""Time that a submission cannot touch: our clock around rounds of work on memory that it has never seen.

A round first tells its sizes. Then the clock starts: the parent sends "go" together with the handles of fresh slabs,
waits for the report, and reads a few elements of every output. When those have arrived the clock stops. Then every
output is checked, so no call can have been skipped.

A round costs time around its calls (messages, opening slabs), and that time is subtracted. It is measured with rounds
of our own kernel, whose worker is believed when it says by device events what the calls took. Our rounds and the
submission's take turns (A B, B A). The run is void if (a) our own kernel, or the time around it, is slower than alone,
or (b) our rounds vary as much as the submission's and over 5 % of the points depend on it.
"""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from autograder.exercise import Case, Exercise
from autograder.judging import tolerance
from autograder.judging.proof import judge_count, judge_work
from autograder.judging.score import speed_credit
from autograder.judging.verdict import Timed
from autograder.referee.room import Budget, Room, Worker
from autograder.referee.rounds import Round, bytes_of_a_call
from autograder.referee.submission import Cell, Submission
from course_lib import device
from course_lib.timing.sampling import half_width, median_interval

ROUND_S = 20e-3  # of work in one round, at the speed of the floor
ENOUGH_S = 20e-3  # of work in all rounds
MOST_CALLS = 400
SHARE_OF_MEMORY = 0.25  # of what is free, for one round
FEWEST, MOST = 6, 24  # rounds of a submission
NARROW = 0.015  # half of the interval; if only the submission's is wider, and points depend on it, its slow end counts
LITTLE = 0.05  # of the points: less than this may depend on how our own rounds vary
NOISY = 1.03  # the reference may be this much slower than alone
TOO_FAST = 1.3  # so far below the floor nothing can be; a product of a millisecond comes to 1.1, by a higher clock
WARM_S, ROUND_PATIENCE_S = 60.0, 30.0
WATCHED = 2  # rounds that are run again with a profiler looking on, which takes about as long as four others


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

    def round(self, blank: bool = False, values: Iterable[int] = ()) -> Round:
        return Round(self.exercise, self.case, self.seed, self.calls, device.DEVICE, device.TIER, blank, values)


def setting(exercise: Exercise, case: Case, seed: int) -> Setting:
    call = exercise.draw(case, seed, device.DEVICE, device.TIER, values=seed)
    floor_s = exercise.speed.floor_s(call.args, device.ceilings())
    calls = calls_in_a_round(floor_s, bytes_of_a_call(exercise, call), memory()[0])
    return Setting(exercise, case, seed, calls, floor_s, exercise.timed_sizes(call))


def calls_in_a_round(floor_s: float, bytes_of_one: int, free_bytes: int) -> int:
    """As many as take ROUND_S at the speed of the floor, if their memory is a small enough share of what is free."""
    fits = int(free_bytes * SHARE_OF_MEMORY) // bytes_of_one
    return max(1, min(fits, MOST_CALLS, math.ceil(ROUND_S / floor_s)))


def memory() -> tuple[int, int]:
    """Bytes of the device that this process can still get, and that it may have in all: maybe a part of the device."""
    if device.DEVICE != "cuda":
        return 1 << 30, 1 << 30
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    allowed = device.memory_bytes()
    return min(free, max(0, allowed - torch.cuda.memory_reserved())), allowed


def limits_of(setting: Setting) -> tolerance.Limits:
    """Limits for outputs of this size, derived once: they hardly depend on the values."""
    call = setting.exercise.draw(setting.case, setting.seed, device.DEVICE, device.TIER, values=setting.seed)
    return tolerance.derive(setting.exercise, [(call.args, setting.exercise.oracle(call.args))])


@dataclass(frozen=True)
class Lap:
    """One round by our clock, and its calls by what the worker says: believed of our own code only."""

    seconds: float
    calls_s: float
    drawn: tuple[int, ...] = ()  # what the inputs were made of
    bits: tuple[int, ...] = ()  # of all outputs that were checked

    @property
    def around_s(self) -> float:
        return self.seconds - self.calls_s


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
        said = report.get("calls_s")
        checked = (tuple(round_.drawn), tuple(round_.bits())) if limits is not None else ()
        return Lap(took, float(said) if isinstance(said, int | float) else math.nan, *checked)
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


@dataclass(frozen=True)
class Alone:
    """Our own code while no submission runs."""

    calls_s: float
    around_s: float
    around_high_s: float  # the upper end of its interval


def _room_of_our_own() -> Room:
    """It lives as long as this process, so its time has no end."""
    return Room(Submission(()), answers=True, budget=Budget(math.inf))


@dataclass
class Yardsticks:
    """Workers that run our own code only: one for every reference kernel, or a call that does nothing without one."""

    room: Room = field(default_factory=lambda: _room_of_our_own().__enter__())
    workers: dict[str, Worker] = field(default_factory=dict)
    alone: dict[tuple, Alone] = field(default_factory=dict)

    def lap(self, setting: Setting) -> Lap:
        """One round of our own. An idle one makes one call: the tensors of later ones are made beside real work."""
        exercise = setting.exercise
        if exercise.speed.reference:
            module, _, name = exercise.speed.reference.partition(":")
            source, calls = f"from {module} import {name} as {exercise.entry}", None
        else:
            source, calls = f"def {exercise.entry}(*args): pass", 1
        return time_round(self._worker(exercise, source), setting, None, WARM_S, calls)

    def _worker(self, exercise: Exercise, source: str) -> Worker:
        key = exercise.name
        if key not in self.workers:
            self.workers[key] = Worker(self.room)
            why_not = self.workers[key].load(exercise.entry, Submission((Cell(key, source),)))
            if why_not:
                raise RuntimeError(f"{key}: {why_not}")
        return self.workers[key]

    def measure(self, setting: Setting) -> None:
        """Our own code alone; what is known is kept. No submission may be running."""
        if setting.key not in self.alone:
            laps = [self.lap(setting) for _ in range(1 + FEWEST)][1:]
            around = [lap.around_s for lap in laps]
            calls_s = _median(lap.calls_s for lap in laps)
            self.alone[setting.key] = Alone(calls_s, _median(around), median_interval(around)[1])

    def undercuts(self, setting: Setting) -> bool:
        """Whether our own code, alone, takes less than the floor allows: it was another device, or a busy one, whose
        ceilings were measured, and every submission would come out too near to the floor."""
        took_s = self.alone[setting.key].calls_s / setting.calls
        return bool(setting.exercise.speed.reference) and took_s * TOO_FAST < setting.floor_s

    def close(self) -> None:
        for worker in self.workers.values():
            worker.end()
        self.room.__exit__()

    def forget(self, setting: Setting) -> None:
        self.alone.pop(setting.key, None)


@functools.cache
def yardsticks() -> Yardsticks:
    """Those of this process; the sandbox ends with it."""
    return Yardsticks()


# ------------------------------------------------------------------------------------------- a submission


@dataclass(frozen=True)
class Measured:
    timed: Timed
    slowed: float  # our own rounds beside the submission over the same alone, less 1
    calls_s: tuple[float, ...]  # one call, round by round
    said_s: tuple[float, ...]  # the same as the worker says it
    took_s: float  # for everything
    review: str = ""  # why a person should look
    unsteady: float = 0.0  # where points depend on it: half of the interval of our own rounds, over its median round

    @property
    def noisy(self) -> str:
        """How the device was not quiet, or ""."""
        if self.slowed > NOISY - 1:
            return f"beside this submission our own kernel was {self.slowed:.0%} slower than alone"
        if self.unsteady > NARROW:
            return f"our own rounds varied too, by {self.unsteady:.1%} of the submission's time"
        return ""


def measure(worker: Worker, setting: Setting, yard: Yardsticks) -> Measured:
    """Time a submission turn by turn with our own code; NotRight when a timed answer is wrong."""
    began, limits = time.perf_counter(), limits_of(setting)
    # compiles and tunes, on other data; what compiles later counts
    time_round(worker, replace(setting, calls=1), limits, WARM_S)
    time_round(worker, setting, limits, ROUND_PATIENCE_S)
    submitted: list[Lap] = []
    own: list[Lap] = []
    while True:
        for turn in (len(submitted) % 2, 1 - len(submitted) % 2):
            if turn:
                submitted.append(time_round(worker, setting, limits, ROUND_PATIENCE_S))
            else:
                own.append(yard.lap(setting))
        timed, slowed, unsteady, per_call = _concluded(setting, yard.alone[setting.key], submitted, own)
        if _enough(setting, per_call, timed):
            break
    said = tuple(lap.calls_s / setting.calls for lap in submitted)
    chosen = random.SystemRandom().sample(submitted, WATCHED)
    reviews = [_of_floor(timed), *(same_when_watched(worker, setting, lap) for lap in chosen)]
    review = " ".join(dict.fromkeys(filter(None, reviews)))
    return Measured(timed, slowed, tuple(per_call), said, time.perf_counter() - began, review, unsteady)


def _concluded(
    setting: Setting, alone: Alone, submitted: list[Lap], own: list[Lap]
) -> tuple[Timed, float, float, np.ndarray]:
    """What the rounds so far say: the time of one call, how much slower than alone and how unsteady our own rounds
    were, and each round's time a call.

    A submission could keep processors busy while ours run, so more than what was around them alone is not subtracted.
    """
    referenced = bool(setting.exercise.speed.reference)
    beside_s, around_s = _median(lap.calls_s for lap in own), _median(lap.around_s for lap in own)
    took = np.array([lap.seconds for lap in submitted])
    per_call = np.maximum(1e-9, took - min(around_s, alone.around_s)) / setting.calls
    low, high = median_interval(per_call)
    reference_s = beside_s / setting.calls if referenced else None
    timed, unsteady = Timed(setting.sizes, float(np.median(per_call)), low, high, setting.floor_s, reference_s), 0.0
    if half_width(per_call) > NARROW and (depends := _depends(setting, timed)):
        fast, slow = median_interval([lap.seconds for lap in own])
        vary = (slow - fast) / 2 / float(np.median(took))
        if vary <= NARROW:
            timed = replace(timed, seconds=high)
        elif depends > LITTLE * setting.exercise.speed.points:
            unsteady = vary
    later = (around_s - alone.around_high_s) / float(np.median(took))
    return timed, max(later, beside_s / alone.calls_s - 1 if referenced else 0.0), unsteady, per_call


def _depends(setting: Setting, timed: Timed) -> float:
    """How many points lie between both ends of the interval."""
    speed = setting.exercise.speed
    shares = [replace(timed, seconds=end).share for end in (timed.low_s, timed.high_s)]
    low, high = (speed_credit(share, speed.full, speed.none, speed.points) for share in shares)
    return low - high


def _enough(setting: Setting, per_call: np.ndarray, timed: Timed) -> bool:
    rounds = len(per_call)
    if rounds < FEWEST or (per_call.sum() * setting.calls < ENOUGH_S and rounds < MOST):
        return False
    return rounds >= MOST or half_width(per_call) <= NARROW or not _depends(setting, timed)


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


def _of_floor(timed: Timed) -> str:
    """Why a person should look at a time below the floor, or ""."""
    faster = timed.floor_s / timed.seconds
    if faster < TOO_FAST:
        return ""
    return (
        f"It took {1 / faster:.0%} of the least time that this device needs for what is asked: perhaps less was done."
    )


def same_when_watched(worker: Worker, setting: Setting, lap: Lap) -> str:
    """Run the round of one lap again, on the same inputs, with a profiler looking on.

    A lap is drawn after all were timed: who lets others work while the device is busy, or in some rounds only, does not
    know which is looked at. NotRight when the profiler saw work that is not the submission's own; otherwise why a
    person should look, or "": an honest answer is the same bit by bit, unless its sums depend on which program comes
    first.
    """
    round_ = setting.round(values=lap.drawn)
    try:
        worker.plan(round_)
        report = worker.go(round_, ROUND_PATIENCE_S, watched=True)
        if report.get("error"):
            raise NotRight(f"raised {str(report['error'])[:300]} when a profiler looked on")
        differing = sum(one != other for one, other in zip(lap.bits, round_.bits(), strict=True))
        least = setting.exercise.speed.least_kernels
        least = sum(map(least, round_.calls)) if least else 0
    finally:
        worker.close(round_.slabs)
    seen = report.get("seen") or {}
    refused, review = judge_count(seen, least) if least else ("", "")
    if setting.exercise.asks_for_kernels:
        refused, review = judge_work(setting.exercise, seen, False, "partly", (), ())
    if refused:
        raise NotRight(refused)
    if differing:
        review = f"{differing} of {len(lap.bits)} outputs were not the same when a profiler looked on. {review}".strip()
    return review
