"""What a recorded trace says, by the rules that roofline.profile states."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise


def of(events, category: str) -> list[dict]:
    return [e for e in events if e["category"] == category]


def end_of(event) -> float:
    return event["start_us"] + event["duration_us"]


def ranges_of(events, thread=None) -> list[tuple[float, float, str]]:
    """(start, end, name) of the ranges of one thread, or of all, by start: the outermost first."""
    chosen = [r for r in of(events, "range") if thread in (None, r["thread"])]
    return sorted((r["start_us"], end_of(r), r["name"]) for r in chosen)


def open_at(ranges, time_us: float) -> list[str]:
    return [name for start, end, name in ranges if start <= time_us < end]


def launched_in(events) -> dict[int, list[str]]:
    """Correlation -> the ranges around that launch."""
    launches = of(events, "launch")
    ranges = {thread: ranges_of(events, thread) for thread in {e["thread"] for e in launches}}
    return {e["correlation"]: open_at(ranges[e["thread"]], e["start_us"]) for e in launches}


def counted(v) -> list[dict]:
    around = launched_in(v["events"])
    return [k for k in of(v["events"], "kernel") if "warmup" not in around[k["correlation"]]]


def merged(kernels) -> list[tuple[float, float]]:
    """The stretches of time in which at least one kernel runs."""
    stretches: list[tuple[float, float]] = []
    for kernel in sorted(kernels, key=lambda k: k["start_us"]):
        if stretches and kernel["start_us"] <= stretches[-1][1]:
            stretches[-1] = (stretches[-1][0], max(stretches[-1][1], end_of(kernel)))
        else:
            stretches.append((kernel["start_us"], end_of(kernel)))
    return stretches


def between(stretches, longer_than: float) -> list[list[float]]:
    return [[a[1], b[0] - a[1]] for a, b in pairwise(stretches) if b[0] - a[1] > longer_than]


def sums(kernels, owners) -> dict[str, float]:
    """Kernel time under each name; `owners(kernel)` gives the names it counts for."""
    sums: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        for name in owners(kernel):
            sums[name] += kernel["duration_us"]
    return dict(sums)


def innermost(v):
    around = launched_in(v["events"])
    return lambda kernel: (around[kernel["correlation"]] or ["outside"])[-1:]


def window_of(kernels) -> tuple[float, float]:
    return min(k["start_us"] for k in kernels), max(map(end_of, kernels))


SHORT_US = 5.0  # a kernel that does nothing takes about 3.6 us of an H200: below this, starting is most of it


def bound_of(v, kernels, busy: float) -> str:
    """What keeps the program from being faster, by the rules that roofline.profile states."""
    if busy >= 0.9:
        short = kernel_time([k for k in kernels if k["duration_us"] < SHORT_US])
        return "small kernels" if 2 * short > kernel_time(kernels) else "device"
    idle, waits = between(merged(kernels), 0.0), of(v["events"], "sync")
    waited = sum(d for at, d in idle if any(w["start_us"] <= at < end_of(w) for w in waits))
    return "waits" if 2 * waited > sum(d for _, d in idle) else "host"


def answer(v, kernels=None, owners=None, busy_us=None, window=None, **parts) -> dict:
    """The right answer. An argument that is given replaces its part."""
    kernels = counted(v) if kernels is None else kernels
    if not kernels:
        return {"profile": {"ranges": {}, "busy": 0.0, "gaps": [], "bound": "host"}}
    stretches = merged(kernels)
    busy_us = sum(b - a for a, b in stretches) if busy_us is None else busy_us
    first, last = window or window_of(kernels)
    busy = busy_us / (last - first)
    right = {
        "ranges": sums(kernels, owners or innermost(v)),
        "busy": busy,
        "gaps": between(stretches, v["gap_us"]),
        "bound": bound_of(v, kernels, busy),
    }
    return {"profile": {**right, **parts}}


def kernel_time(kernels) -> float:
    return sum(k["duration_us"] for k in kernels)
