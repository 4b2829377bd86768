"""Warm up until times settle, then run rounds of calls until their median is known well enough."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from course_lib.timing import sampling
from course_lib.timing.clocks import Clock

__all__ = ["Series", "measure"]

SETTLED = 0.01  # two warm-up blocks that agree this well, the second twice as long, are steady
FIRST_BLOCK_S = 20e-3  # blocks of 5 ms agree within 2 % while a clock that takes 300 ms to double is rising
LEAST_S = 0.1  # a few milliseconds see only one state of the clock and of other processes: measure for longer
BATCH_S, BATCH_RUNS = 20e-3, 64  # limits of what is queued before the host waits


@dataclass(frozen=True)
class Series:
    seconds: np.ndarray  # (rounds, calls)
    late: np.ndarray  # (rounds, calls) of bool: the device waited for the host inside this call
    host: np.ndarray  # (rounds, calls): seconds the host spent in the call
    clocks: tuple[Clock, ...]  # one a batch where the driver tells
    warmup_runs: int = 0  # calls before the first round
    settled: bool = True  # did the last two warm-up blocks agree

    @property
    def clean(self) -> np.ndarray:
        """(rounds,) of bool: which rounds to keep; all of them where those without a wait are the smaller part."""
        clean = ~self.late.any(axis=1)
        return clean if 2 * clean.sum() >= len(clean) else np.ones_like(clean)

    @property
    def kept(self) -> np.ndarray:
        return self.seconds[self.clean]


def measure(
    calls: Sequence[Callable],
    clock,
    samples: Callable[[np.ndarray], np.ndarray],
    precision: float,
    max_seconds: float,
    rounds: int | None = None,
) -> Series:
    """Warm up until two blocks agree, then run rounds of `calls` until the median of `samples` is precise.

    `samples` turns the seconds of all rounds, (rounds, calls), into one number a round.
    """
    for call in dict.fromkeys(calls):
        call()  # compiles
    clock.times(calls)
    begin = time.perf_counter()
    clock.times(calls)
    per_round = time.perf_counter() - begin
    warmup_runs, settled = _warm_up(calls, clock, per_round, max_seconds / 2)
    batch = max(1, min(BATCH_RUNS // len(calls), round(BATCH_S / per_round)))
    begin, done = time.perf_counter(), None
    while True:
        size = batch if rounds is None else min(batch, rounds - (len(done.seconds) if done else 0))
        done = _joined(done, _batch(calls, clock, size))
        spent = time.perf_counter() - begin
        if rounds is not None and (len(done.seconds) >= rounds or spent > max_seconds):
            break
        if rounds is None and _enough(samples(done.kept), precision, spent, max_seconds):
            break
    return replace(done, warmup_runs=warmup_runs, settled=settled)


def _warm_up(calls, clock, per_round: float, max_seconds: float) -> tuple[int, bool]:
    """(calls made, did they settle): blocks of rounds, each twice the last, until two agree."""
    begin, before = time.perf_counter(), np.empty(0)
    count, ran = max(1, round(FIRST_BLOCK_S / per_round)), 3
    most = max(1, min(BATCH_RUNS // len(calls), round(BATCH_S / per_round)))
    while time.perf_counter() - begin < max_seconds:
        block, left = None, count
        while left > 0 and (block is None or time.perf_counter() - begin < max_seconds):
            block = _joined(block, _batch(calls, clock, min(left, most)))
            left -= most
        after = block.seconds.sum(axis=1)
        ran += len(after)
        if sampling.settled(before, after, SETTLED):
            return ran * len(calls), True
        before, count = after, 2 * count
    return ran * len(calls), False


def _batch(calls, clock, rounds: int) -> Series:
    batch = clock.times(tuple(calls) * rounds)
    columns = [np.reshape(column, (rounds, len(calls))) for column in (batch.seconds, batch.late, batch.host)]
    return Series(*columns, (batch.clock,) if batch.clock else ())


def _joined(a: Series | None, b: Series) -> Series:
    if a is None:
        return b
    pairs = ((a.seconds, b.seconds), (a.late, b.late), (a.host, b.host))
    return Series(*(np.concatenate(pair) for pair in pairs), a.clocks + b.clocks)


def _enough(samples: np.ndarray, precision: float, spent: float, max_seconds: float) -> bool:
    if spent > max_seconds:
        return len(samples) >= 3  # a call of many seconds: three runs say more than one
    least = min(LEAST_S, max_seconds / 4)
    return spent > least and len(samples) >= 20 and sampling.half_width(samples) <= precision
