"""What ran when: intervals read from a recorded trace, their sums, gaps and owners. Pure functions.

A trace is the JSON that torch's profiler writes (`export_chrome_trace`), plain or gzipped.
"""

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "Allocation",
    "Gap",
    "Interval",
    "RangeRow",
    "Row",
    "Trace",
    "busy_s",
    "gaps",
    "merged",
    "outermost",
    "range_times",
    "read_trace",
    "self_times",
    "totals",
]


class Interval(NamedTuple):
    """One piece of work on a device's stream, or one call on a host thread."""

    start_s: float
    end_s: float
    name: str
    stream: int  # of the device; for host calls the thread
    launched_s: float | None = None  # when the host launched it; None for host calls, or where it is not known


class Gap(NamedTuple):
    """A time in which nothing ran."""

    start_s: float
    end_s: float
    before: str | None  # what ended last before it; None at the beginning
    after: str | None  # what ended the wait; None at the end


class Row(NamedTuple):
    name: str
    calls: int
    total_s: float
    share: float  # of the sum over all rows


class RangeRow(NamedTuple):
    name: str
    calls: int
    host_s: float  # time the host spent inside
    device_s: float  # time of the work that was launched inside, whenever it ran


class Allocation(NamedTuple):
    """One allocation (bytes > 0) or one free (bytes < 0)."""

    time_s: float
    bytes: int
    address: int
    device: str  # "cpu" or "cuda"
    thread: int


@dataclass(frozen=True)
class Trace:
    device: tuple[Interval, ...]  # kernels, copies and fills on the GPU
    operators: tuple[Interval, ...]  # torch operators on the host, nested within each other
    ranges: tuple[Interval, ...]  # what span(...) marked
    memory: tuple[Allocation, ...]  # in order of time; empty unless memory was recorded

    def within(self, start_s: float, end_s: float) -> "Trace":
        """What was called between two times; device work counts by its launch."""

        def inside(i: Interval) -> bool:
            return start_s <= (i.start_s if i.launched_s is None else i.launched_s) <= end_s

        return Trace(
            tuple(filter(inside, self.device)),
            tuple(filter(inside, self.operators)),
            tuple(filter(inside, self.ranges)),
            tuple(a for a in self.memory if start_s <= a.time_s <= end_s),
        )


def read_trace(path: str | Path) -> Trace:
    """Read a recorded trace; times are seconds from its first event."""
    data = Path(path).read_bytes()
    events = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    events = events["traceEvents"] if isinstance(events, dict) else events
    by_kind = defaultdict(list)
    for event in events:
        if event.get("ph") == "X":
            by_kind[event.get("cat")].append(event)
    kept = [e for kind in (*_DEVICE, *_LAUNCH, "cpu_op", "user_annotation") for e in by_kind[kind]]
    memory = [e for e in events if e.get("name") == "[memory]"]
    zero = min((float(e["ts"]) for e in kept + memory), default=0.0)
    launched = {}
    for kind in _LAUNCH:
        for e in by_kind[kind]:
            launched[e.get("args", {}).get("correlation")] = (float(e["ts"]) - zero) * 1e-6
    device = [
        _interval(e, zero, launched.get(e.get("args", {}).get("correlation"))) for k in _DEVICE for e in by_kind[k]
    ]
    return Trace(
        tuple(sorted(device)),
        tuple(sorted(_interval(e, zero) for e in by_kind["cpu_op"])),
        tuple(sorted(_interval(e, zero) for e in by_kind["user_annotation"])),
        tuple(sorted(_allocation(e, zero) for e in memory)),
    )


_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCH = ("cuda_runtime", "cuda_driver")  # Triton launches through the driver, torch through the runtime


def _interval(event: dict, zero: float, launched_s: float | None = None) -> Interval:
    start = (float(event["ts"]) - zero) * 1e-6
    stream = event.get("args", {}).get("stream", event["tid"])
    return Interval(start, start + float(event.get("dur", 0)) * 1e-6, event["name"], _number(stream), launched_s)


def _allocation(event: dict, zero: float) -> Allocation:
    args = event["args"]
    device = "cuda" if args["Device Type"] == 1 else "cpu"  # c10::DeviceType
    seconds = (float(event["ts"]) - zero) * 1e-6
    return Allocation(seconds, int(args["Bytes"]), int(args["Addr"]), device, _number(event["tid"]))


def _number(value) -> int:
    return int(value) if str(value).lstrip("-").isdigit() else 0


def merged(intervals: Iterable[Sequence]) -> list[tuple[float, float]]:
    """The union of (start, end, ...) records as separate (start, end) pairs in order."""
    union: list[tuple[float, float]] = []
    for start, end in sorted((i[0], i[1]) for i in intervals):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return union


def busy_s(intervals: Iterable[Sequence], start_s: float | None = None, end_s: float | None = None) -> float:
    """Seconds in which at least one of (start, end, ...) was running, between two times where they are given."""
    low = float("-inf") if start_s is None else start_s
    high = float("inf") if end_s is None else end_s
    return sum(max(0.0, min(end, high) - max(start, low)) for start, end in merged(intervals))


def gaps(
    intervals: Iterable[Sequence], start_s: float | None = None, end_s: float | None = None, least_s: float = 0.0
) -> list[Gap]:
    """Times longer than `least_s` in which none of (start, end, name, ...) ran, in order.

    With `start_s` and `end_s` the waits before the first and after the last interval count too.
    """
    found, free, last = [], start_s, None
    for start, end, name, *_ in sorted(intervals, key=lambda i: i[:2]):
        if end_s is not None and start >= end_s:
            break
        if free is not None and start - free > least_s:
            found.append(Gap(free, start, last, name))
        if free is None or end >= free:
            free, last = end, name
    if end_s is not None and free is not None and end_s - free > least_s:
        found.append(Gap(free, end_s, last, None))
    return found


def totals(intervals: Iterable[Sequence]) -> list[Row]:
    """Calls, seconds and share of each name, longest first. Overlapping streams count twice."""
    return _rows((i[2], i[1] - i[0]) for i in intervals)


def self_times(operators: Iterable[Sequence]) -> list[Row]:
    """Like `totals`, for nested calls: each second belongs to the innermost call (start, end, name, thread)."""
    own: list[list] = []
    by_thread = defaultdict(list)
    for i in sorted(operators, key=lambda i: (i[0], -i[1])):
        stack = by_thread[i[3]]
        while stack and stack[-1][0] <= i[0]:
            stack.pop()
        if stack:
            stack[-1][1][1] -= min(i[1], stack[-1][0]) - i[0]
        own.append([i[2], i[1] - i[0]])
        stack.append((i[1], own[-1]))
    return _rows(own)


def outermost(operators: Iterable[Interval]) -> list[Interval]:
    """Operators that no other operator of the same thread contains."""
    kept, ends = [], {}
    for i in sorted(operators, key=lambda i: (i.start_s, -i.end_s)):
        if i.start_s >= ends.get(i.stream, float("-inf")):
            kept.append(i)
            ends[i.stream] = i.end_s
    return kept


def _rows(named: Iterable[Sequence]) -> list[Row]:
    calls, seconds = defaultdict(int), defaultdict(float)
    for name, took in named:
        calls[name] += 1
        seconds[name] += took
    whole = sum(seconds.values()) or 1.0
    rows = [Row(name, calls[name], seconds[name], seconds[name] / whole) for name in seconds]
    return sorted(rows, key=lambda row: (-row.total_s, row.name))


def range_times(ranges: Iterable[Interval], device: Sequence[Interval]) -> list[RangeRow]:
    """Host and device time of each range, in order of first use.

    Device work belongs to every range that was open when it was launched, on any host thread: a backward
    pass launches from a thread of its own while the range waits for it.
    """
    work = sorted((i.start_s if i.launched_s is None else i.launched_s, i.end_s - i.start_s) for i in device)
    times = [launched for launched, _ in work]
    calls, host, busy = defaultdict(int), defaultdict(float), defaultdict(float)
    for r in sorted(ranges):
        calls[r.name] += 1
        host[r.name] += r.end_s - r.start_s
        inside = work[bisect_right(times, r.start_s) : bisect_right(times, r.end_s)]
        busy[r.name] += sum(took for _, took in inside)
    return [RangeRow(name, calls[name], host[name], busy[name]) for name in calls]
