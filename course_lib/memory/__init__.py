"""Where does the memory go: the peak of a call, its timeline, and who owned what at the peak.

here      measured: the allocator's peak, and every allocation of a call as torch's profiler sees it
ledger    accounted: who owns each byte at each moment of forward and backward, on meta tensors before it is run
keeping   an MLP with a choice of what it keeps, for such accounts
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from course_lib import profiling
from course_lib.device import DEVICE
from course_lib.memory.ledger import Block, Kept, Ledger, ledger, saved
from course_lib.profiling.trace import Allocation, Interval, Trace, outermost
from course_lib.table import Table, Tabular, bytes_text

__all__ = [
    "Block",
    "Kept",
    "Ledger",
    "MemoryTimeline",
    "Owned",
    "ledger",
    "owners_at",
    "peak",
    "saved",
    "timeline",
]


class Owned(NamedTuple):
    owner: str  # the range, and the outermost operator that allocated
    blocks: int
    bytes: int


@dataclass(frozen=True)
class MemoryTimeline(Tabular):
    """Bytes above what was held before the call."""

    device: str  # "cuda" or "cpu"
    times_s: tuple[float, ...]  # of every allocation and free, from the beginning of the call
    bytes: tuple[int, ...]  # held just after each of them
    peak_bytes: int
    held_bytes: int  # still held when the call returned, its result included
    at_peak: tuple[Owned, ...]  # who owned the peak, largest first

    def table(self) -> Table:
        rows = [[o.owner, o.blocks, bytes_text(o.bytes)] for o in self.at_peak[:10]]
        if len(self.at_peak) > 10:
            rest = self.at_peak[10:]
            rows.append([f"{len(rest)} more", sum(o.blocks for o in rest), bytes_text(sum(o.bytes for o in rest))])
        note = f"peak {bytes_text(self.peak_bytes)}, held after the call {bytes_text(self.held_bytes)} ({self.device})"
        return Table(("owner at the peak", "blocks", "memory"), rows, note=note)


def peak(fn: Callable[[], object]) -> int:
    """Most bytes that `fn` held at once, above what was held before; after one call that is not counted.

    On a GPU this is the allocator's own count (blocks of 512 bytes). On a CPU it is the sum of torch's allocations,
    as its profiler sees them; memory of numpy and Python is not counted.
    """
    if DEVICE != "cuda":
        return timeline(fn).peak_bytes
    fn()  # libraries take their workspaces in the first call
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    fn()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def timeline(fn: Callable[[], object]) -> MemoryTimeline:
    """Every allocation and free of one `fn()`, after one call that is not counted."""
    recorded = profiling.record(fn, memory=True)
    window = next(r for r in recorded.ranges if r.name == profiling.WINDOW)
    inside = recorded.within(window.start_s, window.end_s)
    events = [a for a in inside.memory if a.device == DEVICE]
    held, total = [], 0
    for event in events:
        total += event.bytes
        held.append(total)
    top = max(range(len(held)), key=held.__getitem__, default=-1)
    return MemoryTimeline(
        device=DEVICE,
        times_s=tuple(event.time_s - window.start_s for event in events),
        bytes=tuple(held),
        peak_bytes=max(0, *held) if held else 0,
        held_bytes=total,
        at_peak=tuple(owners_at(events[: top + 1], inside)),
    )


def owners_at(events: Sequence[Allocation], recorded: Trace) -> list[Owned]:
    """Who owns what is still allocated after `events`, largest first."""
    alive: dict[int, Allocation] = {}
    for event in events:
        if event.bytes > 0:
            alive[event.address] = event
        else:
            alive.pop(event.address, None)  # a block from before the call
    ranges = [r for r in recorded.ranges if r.name != profiling.WINDOW]
    operators = _by_thread(recorded.operators)
    blocks, size = defaultdict(int), defaultdict(int)
    for event in alive.values():
        operator = _outermost_open(operators.get(event.thread, []), event.time_s)
        # A backward pass allocates from a thread of its own, while the range of the caller is open.
        spans = [r.name for r in ranges if r.start_s <= event.time_s <= r.end_s]
        owner = ": ".join([*spans[-1:], operator or "outside operators"])
        blocks[owner] += 1
        size[owner] += event.bytes
    return sorted((Owned(o, blocks[o], size[o]) for o in size), key=lambda o: (-o.bytes, o.owner))


def _by_thread(operators: Sequence[Interval]) -> dict[int, list[Interval]]:
    """The outermost operators of each thread, in order; they do not overlap."""
    threads = defaultdict(list)
    for i in outermost(operators):
        threads[i.stream].append(i)
    return threads


def _outermost_open(operators: list[Interval], time_s: float) -> str | None:
    at = bisect_right(operators, time_s, key=lambda i: i.start_s) - 1
    return operators[at].name if at >= 0 and operators[at].end_s >= time_s else None
