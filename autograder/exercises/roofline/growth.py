"""Timings of one operator at growing sizes on a device drawn at random: what roofline.regime is asked about.

The true time is a soft maximum of a constant overhead and of the work at a fixed share of the roof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autograder.exercise import Call, Draw

SAMPLES = 7

# The launch costs that people quote, 5 to 50 us, are wrong for all of these. An end of overhead counts as right within
# a factor of 2 in size, which is one of 4 in time where the bytes grow with the square of the size.
FAST, SLOW = (0.7e-6, 1.2e-6), (55e-6, 200e-6)


@dataclass(frozen=True)
class Operator:
    flops: Callable[[float], float]  # of a size
    bytes: Callable[[float], float]


@dataclass(frozen=True)
class Device:
    bytes_per_s: float
    flops_per_s: float
    overhead_s: float  # what a call costs however small it is
    share: float  # of the roof, what the operator reaches

    def work_s(self, op: Operator, size: float) -> float:
        return max(op.bytes(size) / self.bytes_per_s, op.flops(size) / self.flops_per_s) / self.share

    def crossing(self, op: Operator) -> float:
        """The size at which the work takes as long as the overhead; 0 where even no size would."""
        low, high = 1e-3, 1e15
        if self.work_s(op, low) >= self.overhead_s:
            return 0.0
        for _ in range(100):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if self.work_s(op, middle) < self.overhead_s else (low, middle)
        return low


@dataclass(frozen=True)
class Situation:
    """What a case draws from. `span`: how many times the first size is below, and the last above, what matters."""

    operator: str  # "pointwise", "square" or "growing k"
    shows: tuple[str, ...]  # the regimes in the order in which they come
    ridge: tuple[float, float] = (20, 120)
    overhead_s: tuple[float, float] = SLOW
    share: tuple[float, float] = (0.83, 0.88)
    below: tuple[float, float] = (6, 20)
    above: tuple[float, float] = (6, 20)
    least_s: float = 0.0  # what the work of the first size takes
    noise: float = 0.01
    disturbed: bool = False  # the first sample of each size, and sometimes another, is far too long


def operator(draw: Draw, kind: str) -> Operator:
    item = draw.choice((2, 4))
    if kind == "pointwise":
        flops = draw.integer(2, 3)  # of one, FLOPs could not be told from sizes
        tensors = draw.integer(flops, 4)
        return Operator(lambda n: flops * n, lambda n: tensors * item * n)
    if kind == "square":
        return Operator(lambda n: 2 * n**3, lambda n: 3 * item * n**2)
    m = draw.integer(600, 4000)  # C is (m, m): while k is small, the bytes hardly grow
    return Operator(lambda k: 2 * m * m * k, lambda k: item * (2 * m * k + m * m))


def table(draw: Draw, s: Situation) -> Call:
    """One call that shows what the situation promises, with at least three sizes of each regime."""
    while True:
        op = operator(draw, s.operator)
        bytes_per_s = 10 ** draw.number(11, 12.6)
        device = Device(
            bytes_per_s, bytes_per_s * draw.number(*s.ridge), draw.number(*s.overhead_s), draw.number(*s.share)
        )
        sizes = _sizes(draw, s, device.crossing(op), op, device)
        labels = true_regimes(_rows(op, sizes), _roof(device), device.crossing(op))
        sure = [x for x, n in zip(labels, sizes, strict=True) if not near(n, device.crossing(op))]
        enough = tuple(dict.fromkeys(sure)) == s.shows and min(map(sure.count, s.shows)) >= 3
        if enough and device.work_s(op, sizes[0]) >= s.least_s:
            break
    rows = _rows(op, sizes)
    for row in rows:
        row["seconds"] = _samples(draw, s, device, device.work_s(op, row["size"]))
    secret = {"crossing": device.crossing(op)}
    return Call({"rows": rows, "roof": _roof(device)}, f"{len(rows)} sizes from {sizes[0]} to {sizes[-1]}", secret)


def _sizes(draw: Draw, s: Situation, crossing: float, op: Operator, device: Device) -> list[int]:
    """Around the crossing; past it, short of it or around the ridge where the situation says so."""
    below, above = draw.number(*s.below), draw.number(*s.above)
    if "overhead" not in s.shows:
        start = 4 * crossing * draw.number(1, 3)
        if len(s.shows) > 1:
            start = max(start, 4.0)
        first, last = start, start * below * above
    elif len(s.shows) == 1:
        last = crossing / draw.number(4.5, 10)
        first = last / (below * above)
    else:
        first, last = crossing / below, crossing * above
    sizes, size = [], max(first, 2.0)
    while not sizes or sizes[-1] < last:
        sizes.append(round(size))
        size = max(size * draw.number(1.15, 1.35), size + 1)
    return sizes


def _rows(op: Operator, sizes) -> list[dict]:
    return [{"size": n, "flops": op.flops(n), "bytes": op.bytes(n)} for n in sizes]


def _roof(device: Device) -> dict:
    return {"flops_per_s": device.flops_per_s, "bytes_per_s": device.bytes_per_s}


def _samples(draw: Draw, s: Situation, device: Device, work_s: float) -> list[float]:
    corner = 6  # real curves bend softly where two limits meet
    true = (device.overhead_s**corner + work_s**corner) ** (1 / corner)
    seconds = [true * max(0.5, 1 + draw.rng.gauss(0, s.noise)) for _ in range(SAMPLES)]
    for i in {0, draw.integer(0, SAMPLES - 1)} if s.disturbed else ():
        seconds[i] *= 10 ** draw.number(0.7, 2.7)
    return seconds


def near(size: float, crossing: float) -> bool:
    """Too near to where overhead ends to be told apart by timings: within a factor of 2."""
    return crossing / 2 <= size <= 2 * crossing


def side_of_the_ridge(row, roof) -> str:
    return "bandwidth" if row["bytes"] / roof["bytes_per_s"] > row["flops"] / roof["flops_per_s"] else "compute"


def true_regimes(rows, roof, crossing: float) -> list[str]:
    return ["overhead" if row["size"] < crossing else side_of_the_ridge(row, roof) for row in rows]


def ends_of(rows, crossing: float) -> float | None:
    if crossing < rows[0]["size"]:
        return 0
    return None if crossing > rows[-1]["size"] else crossing


def answer(v, labels=None, **ends) -> dict:
    """The right answer. An argument that is given replaces its part."""
    labels = true_regimes(v["rows"], v["roof"], v["crossing"]) if labels is None else labels
    return {"labels": labels, "overhead_ends": ends.get("ends", ends_of(v["rows"], v["crossing"]))}
