"""How long does it take on the GPU: with cold caches, warmed up, and with an interval that says how sure we are.

`time_gpu` times one call with events, `time_graph` a short kernel inside a CUDA graph, `compare` two functions
turn by turn. Without a GPU, `time_gpu` and `compare` use the host's clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from course_lib.device import DEVICE, machine
from course_lib.timing import sampling
from course_lib.timing.clocks import Clock
from course_lib.timing.rounds import SETTLED, Series, measure
from course_lib.timing.stopwatch import EventClock, GraphClock, HostClock

__all__ = ["Comparison", "Timing", "compare", "time_gpu", "time_graph"]

CLOCK_MOVED = 1.03  # an H200 reports its power cap at 1965 of 1980 MHz too, where it changes nothing


@dataclass(frozen=True)
class Timing:
    median_s: float  # of the samples
    low_s: float  # 95 % interval of the median
    high_s: float
    p10_s: float  # a tenth of the samples are faster
    p90_s: float  # a tenth are slower
    samples: tuple[float, ...]  # seconds of one call each, in the order measured
    warmup_runs: int  # calls before the first sample
    method: str  # "events", "graph" or "host"
    warnings: tuple[str, ...]  # reasons to doubt the number; empty when there are none

    @property
    def ms(self) -> float:
        return self.median_s * 1e3

    @property
    def us(self) -> float:
        return self.median_s * 1e6

    def __str__(self) -> str:
        units = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
        unit, scale = next((pair for pair in units if self.median_s >= pair[1]), units[-1])
        middle, low, high = (f"{x / scale:.4g}" for x in (self.median_s, self.low_s, self.high_s))
        return f"{middle} {unit} [{low}, {high}]" + "".join(f"\n  warning: {w}" for w in self.warnings)


@dataclass(frozen=True)
class Comparison:
    ratio: float  # median time of a over median time of b: below 1, a is faster
    low: float  # 95 % interval of the ratio
    high: float
    a: Timing
    b: Timing

    def __str__(self) -> str:
        return f"{self.ratio:.4f}x [{self.low:.4f}, {self.high:.4f}]\na: {self.a}\nb: {self.b}"


def time_gpu(
    fn: Callable[[], object], *, precision: float = 0.01, cold: bool = True, max_seconds: float = 2.0
) -> Timing:
    """Median time of one `fn()` on the device.

    Calls are queued behind sweeps of the cache, so the device always has work and an event pair contains no
    wait for the host. A pair that does contain such a wait is found and left out. With `cold`, 256 MiB are
    read before every call, outside its events. Runs until the 95 % interval of the median is within
    `precision` of it, or for `max_seconds`. Below about 10 us the events themselves (3 us on an H200) show:
    use `time_graph`. On a CPU the sweep is at most 128 MiB, which a large server's last cache may survive.
    """
    clock = EventClock(cold) if DEVICE == "cuda" else HostClock(cold)
    return _time(fn, clock, precision, max_seconds)


def time_graph(
    fn: Callable[[], object],
    *,
    repeats: int | None = None,
    cold: bool = True,
    precision: float = 0.01,
    max_seconds: float = 2.0,
) -> Timing:
    """Median time of one `fn()` inside a CUDA graph: no launch cost, no events around single kernels.

    Warm: `repeats` calls in one graph, replayed, divided. Cold: one graph holds `repeats` pairs of sweep and
    call, another `repeats` sweeps; they are replayed in turn and the difference is divided. Both contain the
    gap between two kernels of a graph, about 1 us. The difference is as noisy as the sweeps, so very short
    kernels need many rounds.
    """
    return _time(fn, GraphClock(cold, repeats), precision, max_seconds)


def compare(
    a: Callable[[], object],
    b: Callable[[], object],
    *,
    rounds: int | None = None,
    method: str = "events",
    cold: bool = True,
    precision: float = 0.005,
    max_seconds: float = 4.0,
) -> Comparison:
    """Time `a` and `b` in turn, A B B A, so that drift affects both equally.

    `ratio` is median(a) / median(b); its interval comes from a bootstrap over whole rounds, with a fixed seed.
    Runs `rounds` rounds, or until the ratio is known to `precision`, or for `max_seconds`.
    """
    if method not in ("events", "graph"):
        raise ValueError(f'method is "events" or "graph", not {method!r}')
    if method == "graph":
        clock = GraphClock(cold)
    else:
        clock = EventClock(cold) if DEVICE == "cuda" else HostClock(cold)

    def ratio(seconds: np.ndarray) -> np.ndarray:
        return (seconds[:, 0] + seconds[:, 3]) / (seconds[:, 1] + seconds[:, 2])

    series = measure((a, b, b, a), clock, ratio, precision, max_seconds, rounds)
    left, right = series.kept[:, [0, 3]], series.kept[:, [1, 2]]
    # The ratio may be known well while each side's own median still moves, so the sides are not held to `precision`.
    timings = [_timing(series, columns, clock.method, float("inf")) for columns in ((0, 3), (1, 2))]
    return Comparison(*sampling.bootstrap_ratio(left, right), *timings)


def _time(fn: Callable[[], object], clock, precision: float, max_seconds: float) -> Timing:
    series = measure((fn,), clock, lambda seconds: seconds[:, 0], precision, max_seconds)
    return _timing(series, (0,), clock.method, precision)


def _timing(series: Series, columns: Sequence[int], method: str, precision: float) -> Timing:
    samples = series.kept[:, columns].reshape(-1)
    low, high = sampling.median_interval(samples)
    p10, p90 = np.quantile(samples, [0.1, 0.9])
    host_s = float(np.median(series.host[:, columns]))
    return Timing(
        median_s=float(np.median(samples)),
        low_s=low,
        high_s=high,
        p10_s=float(p10),
        p90_s=float(p90),
        samples=tuple(samples.tolist()),
        warmup_runs=series.warmup_runs,
        method=method,
        warnings=tuple(_doubts(samples, series, host_s, precision)),
    )


def _doubts(samples: np.ndarray, series: Series, host_s: float, precision: float):
    """Reasons not to trust the median."""
    median, width = float(np.median(samples)), sampling.half_width(samples)
    if len(samples) < sampling.FEWEST:
        yield f"only {len(samples)} runs fitted into the time limit: the interval is just their range"
    elif width > 1.05 * precision:
        yield f"the time limit came first: the interval is ±{width:.1%} where ±{precision:.1%} was asked for"
    if not series.settled:
        yield f"times had not settled after {series.warmup_runs} warm-up runs"
    late = series.late.any(axis=1).mean()
    if late > 0.5:
        yield (
            f"the device waited for the host inside {late:.0%} of the runs (launches slower than kernels, or a "
            "synchronisation inside): time_graph leaves launches out"
        )
    elif host_s > median:
        yield (
            f"a call costs the host {host_s * 1e6:.0f} us, more than the device needs: in a loop the "
            "host sets the pace; time_graph times the kernel alone"
        )
    moved = sampling.drift(samples)
    if abs(moved) > max(2 * SETTLED, sampling.half_width(samples)):
        yield f"times drifted by {moved:+.1%} while measuring"
    yield from _clock_doubts(series.clocks, lambda: machine().max_sm_clock_mhz)


def _clock_doubts(seen: Sequence[Clock], top_mhz: Callable[[], float | None]):
    """`top_mhz()` is asked only where it matters: it starts another program."""
    if not seen:
        return
    low, high = min(c.sm_mhz for c in seen), max(c.sm_mhz for c in seen)
    names = {name for c in seen for name in c.slowed_by}
    often = [name for name in sorted(names) if 2 * sum(name in c.slowed_by for c in seen) >= len(seen)]
    why = f" ({', '.join(often)})" if often else ""
    if high > CLOCK_MOVED * low:
        yield f"the clock moved between {low} and {high} MHz{why}"
    elif often and CLOCK_MOVED * low < (top_mhz() or float("inf")):  # else the limit costs no speed
        yield f"the clock was held at {low} MHz{why}"
