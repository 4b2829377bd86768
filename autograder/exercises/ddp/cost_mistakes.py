"""What people get wrong when they read the timings of a collective: the right reading with one thing changed."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean, median

import numpy as np

from autograder.exercise import Mistake, Values

ADDED, HIDDEN, NOT_WAITED = "added", "hidden", "not waited for"
RUNS = 9  # times of each size
LIMITS = {"alpha_s": 0.15, "bus_bytes_per_s": 0.08, "crossover_bytes": 0.20, "host_s": 0.15}


def answered(alpha: float, beta: float, host: str, host_s: float, ranks: int) -> dict:
    """All that is asked for, from what is behind the timings."""
    bus = 2 * (ranks - 1) / ranks / beta
    return {
        "alpha_s": alpha,
        "bus_bytes_per_s": bus,
        "crossover_bytes": alpha / beta,
        "host": host,
        "host_s": host_s,
    }


def line(times: dict[int, float], relative: bool = True) -> tuple[float, float]:
    """alpha and beta of the nearest line, in relative terms or in seconds."""
    nbytes, seconds = np.array(list(times), float), np.array(list(times.values()))
    weights = 1 / seconds if relative else np.ones(len(seconds))
    columns = np.stack([weights, nbytes * weights], axis=1)
    alpha, beta = np.linalg.lstsq(columns, seconds * weights, rcond=None)[0]
    return float(alpha), float(beta)


def host_of(single: dict[int, float], device: dict[int, float]) -> tuple[str, float]:
    """How the host's cost is in the single calls, and its seconds: the kind whose times are nearest."""
    small = min(single)
    host, extra = single[small], single[small] - device[small]
    guesses = {
        ADDED: (extra, lambda n: extra + device[n]),
        HIDDEN: (host, lambda n: max(host, device[n])),
        NOT_WAITED: (median(single.values()), lambda n: host),
    }
    off = {kind: max(abs(single[n] / guess(n) - 1) for n in single) for kind, (_, guess) in guesses.items()}
    kind = min(off, key=off.get)
    return kind, guesses[kind][0]


def reading(args: Values, middle: Callable = median, relative: bool = True) -> tuple[dict, dict, float, float]:
    """Seconds of single calls and of calls in a row by size, and the line through the second."""
    single, device = ({n: middle(t) for n, t in args[part].items()} for part in ("one", "in_a_row"))
    return single, device, *line(device, relative)


def right(args: Values, **how) -> dict:
    single, device, alpha, beta = reading(args, **how)
    return answered(alpha, beta, *host_of(single, device), args["ranks"])


def _changed(**change: Callable[[dict, Values], object]) -> Callable[[Values], Values]:
    """The right reading with some of its entries made anew, from itself and the arguments."""

    def answer(args: Values) -> Values:
        found = right(args)
        return {"costs": found | {key: make(found, args) for key, make in change.items()}}

    return answer


def _ends(first: bool) -> Callable[[Values], Values]:
    """Alpha from the smallest size alone, or beta from the largest."""

    def answer(args: Values) -> Values:
        _, device, alpha, beta = reading(args)
        small, large = min(device), max(device)
        alpha, beta = (device[small], beta) if first else (alpha, device[large] / large)
        found = right(args)
        return {"costs": answered(alpha, beta, found["host"], found["host_s"], args["ranks"])}

    return answer


def _called(kind: str, instead: str, *ways: Callable[[dict, dict], float]) -> Callable[..., Values]:
    """One kind taken for another, with the seconds that a way of reading gives: (single calls, calls in a row)."""

    def answer(args: Values, way: int = 0) -> Values:
        found = right(args)
        single, device, _, _ = reading(args)
        return (
            {"costs": found | {"host": instead, "host_s": ways[way](single, device)}} if found["host"] == kind else {}
        )

    return answer


def _smallest(single: dict, device: dict) -> float:
    return single[min(single)]


def _difference(single: dict, device: dict) -> float:
    return median(single[n] - device[n] for n in single)


def _smallest_difference(single: dict, device: dict) -> float:
    return single[min(single)] - device[min(single)]


def _scaled(seconds: float, rate: float) -> Callable[[Values], Values]:
    return _changed(
        alpha_s=lambda found, args: found["alpha_s"] * seconds,
        host_s=lambda found, args: found["host_s"] * seconds,
        bus_bytes_per_s=lambda found, args: found["bus_bytes_per_s"] * rate,
    )


def _share(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def _reads(middle: Callable) -> Callable:
    """Only cases fail in which this middle of the nine times is off, and alpha and beta follow from it."""
    return lambda e: all(_made_of(t, *reading(t.args, middle)[2:]) for t in e.failing)


def _line_through(read: Callable[[Values], tuple[float, float]]) -> Callable:
    """In at least half of the failing cases alpha and beta are those of such a line; the host is not looked at."""
    return lambda e: 2 * sum(_made_of(t, *read(t.args)) for t in e.failing) >= len(e.failing)


def _made_of(t, alpha: float, beta: float) -> bool:
    got, args = t.outcome.outputs.get("costs"), t.args
    off = abs(alpha / args["want"]["alpha_s"] - 1) > LIMITS["alpha_s"]
    if not (off and isinstance(got, dict)):
        return False
    pairs = ((got.get("alpha_s"), alpha), (got.get("bus_bytes_per_s"), _share(args["ranks"]) / beta))
    return all(isinstance(g, float) and abs(g - want) <= 0.03 * abs(want) for g, want in pairs)


MISTAKES = (
    Mistake(
        "algorithm_bandwidth",
        "This is the rate of the buffer. On each link 2 (N - 1) / N of it travel: with two ranks the same, with more "
        "nearly twice as much.",
        _changed(bus_bytes_per_s=lambda f, a: f["bus_bytes_per_s"] / _share(a["ranks"])),
    ),
    Mistake(
        "one_half_counted",
        "An all-reduce is a reduce-scatter and an all-gather: each sends (N - 1) / N of the buffer, both together "
        "twice that.",
        _changed(bus_bytes_per_s=lambda f, a: f["bus_bytes_per_s"] / 2),
    ),
    Mistake(
        "factor_inverted",
        "The rate of the buffer was divided by 2 (N - 1) / N; more bytes travel than the buffer has, so multiply.",
        _changed(bus_bytes_per_s=lambda f, a: f["bus_bytes_per_s"] / _share(a["ranks"]) ** 2),
    ),
    Mistake(
        "not_in_parts",
        "The rate of the buffer was multiplied by N - 1 or 2 (N - 1), as if whole buffers went round. They go in N "
        "parts: each rank sends 2 (N - 1) / N of the buffer.",
        lambda args, factor: _changed(bus_bytes_per_s=lambda f, a: f["bus_bytes_per_s"] * a["ranks"] / factor)(args),
        (1, 2),
    ),
    Mistake(
        "absolute_distances",
        "Plain least squares: one per cent of the largest time is more than all of alpha, so alpha is what noise left. "
        "Divide each distance by the time it is measured at.",
        sign=_line_through(lambda args: reading(args, relative=False)[2:]),
    ),
    Mistake(
        "fixed_cost_in_alpha",
        "Alpha is that of the single calls, and they hold the host's cost too. The calls in a row hold only what the "
        "device does.",
        sign=_line_through(lambda args: line({n: median(times) for n, times in args["one"].items()})),
    ),
    Mistake(
        "means",
        "A mean holds the slow first call and the disturbed ones: take medians.",
        sign=_reads(mean),
    ),
    Mistake(
        "means_without_the_first",
        "The slow first call is left out, but a mean of the others still holds the disturbed ones: take medians.",
        sign=_reads(lambda times: mean(times[1:])),
    ),
    Mistake(
        "first_call",
        "The first call of a size is taken: it warms up what that size needs, and says nothing about the others.",
        sign=_reads(lambda times: times[0]),
    ),
    Mistake(
        "crossover_inverted",
        "The crossover is where alpha = n * beta: alpha / beta, in bytes.",
        _changed(crossover_bytes=lambda f, a: 1 / f["crossover_bytes"]),
    ),
    Mistake(
        "crossover_in_numbers",
        "The crossover is asked for in bytes, not in numbers of 4 bytes.",
        _changed(crossover_bytes=lambda f, a: f["crossover_bytes"] / 4),
    ),
    Mistake(
        "crossover_from_the_bus",
        "The crossover is about the whole call: alpha times the rate of the buffer, not that of the link.",
        _changed(crossover_bytes=lambda f, a: f["alpha_s"] * f["bus_bytes_per_s"]),
    ),
    Mistake(
        "crossover_of_the_single_calls",
        "At this size the transfer takes as long as alpha and the host together; alpha alone is asked for.",
        _changed(crossover_bytes=lambda f, a: f["crossover_bytes"] * (1 + f["host_s"] / f["alpha_s"])),
    ),
    Mistake(
        "smallest_as_alpha",
        "The smallest call is taken for one that moves nothing. Where sizes begin near the crossover it is not: take "
        "alpha from a line through all sizes.",
        _ends(first=True),
    ),
    Mistake(
        "largest_as_bandwidth",
        "The largest call is taken for pure transfer. Where sizes end near the crossover alpha is much of it: take the "
        "slope of a line through all sizes.",
        _ends(first=False),
    ),
    Mistake(
        "added_for_hidden",
        "Single calls of large sizes take no longer than calls in a row: the host's cost is not added to them. Where "
        "it is longer than the device's it counts alone: hidden.",
        _called(HIDDEN, ADDED, _smallest, _smallest_difference, _difference),
        (0, 1, 2),
    ),
    Mistake(
        "hidden_for_added",
        "Single calls take longer than calls in a row by the same time at every size, the largest too: the cost is "
        "added, and hides behind nothing.",
        _called(ADDED, HIDDEN, _smallest),
    ),
    Mistake(
        "hidden_for_not_waited",
        "A single call of the largest size is shorter than the device needs for it: the clock stopped before the "
        "device was done. That is not a cost that hides the transfer.",
        _called(NOT_WAITED, HIDDEN, _smallest),
    ),
    Mistake(
        "host_with_alpha",
        "The host's cost is taken from the smallest single call, and what the device does in it is part of that.",
        _changed(host_s=lambda f, a: f["host_s"] + f["alpha_s"] * (f["host"] == ADDED)),
    ),
    Mistake("microseconds", "Times are asked for in seconds.", _scaled(1e6, 1.0)),
    Mistake("milliseconds", "Times are asked for in seconds.", _scaled(1e3, 1.0)),
    Mistake("gigabytes", "The bandwidth is asked for in bytes a second.", _scaled(1.0, 1e-9)),
)
