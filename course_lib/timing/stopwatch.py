"""Three ways to time calls: CUDA events, CUDA graphs, the host's clock; all can sweep the cache in between."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from course_lib.device import DEVICE
from course_lib.timing import clocks

__all__ = ["Batch", "EventClock", "GraphClock", "HostClock", "Sweep"]

FLUSH_BYTES = 256 * 2**20  # several times any L2 cache to date, as in triton.testing.do_bench
LONGEST_HEAD = 256  # sweeps queued ahead of a batch, about 20 ms of head start on an H200


@dataclass(frozen=True)
class Batch:
    seconds: list[float]  # one a call
    late: list[bool]  # the device waited for the host inside this one
    host: list[float]  # host seconds of each call; 0 where the clock is the host's
    clock: clocks.Clock | None


class Sweep:
    """Fills the device's cache with other data by reading.

    What a sweep writes is sent back to memory while the timed call runs, and the call pays for it: `python -m
    benchmarks timing` compares both on a product that reads 117 MB.
    """

    def __init__(self):
        self.buffer = torch.zeros(FLUSH_BYTES // 4, device="cuda")
        self.seen = torch.empty((), device="cuda")

    def __call__(self) -> None:
        torch.sum(self.buffer, 0, out=self.seen)


class EventClock:
    """CUDA events around each call, all queued before the device reaches them."""

    method = "events"

    def __init__(self, cold: bool):
        self.cold = cold
        self.head = 4  # sweeps queued first; grows until the host stays ahead
        self.sweep = Sweep()

    def times(self, calls: Sequence[Callable]) -> Batch:
        pairs = [(_event(), _event()) for _ in calls]
        host, late = [], []
        for _ in range(self.head):
            self.sweep()
        if not self.cold:
            calls[0]()  # the sweeps above emptied the cache
        for call, (start, end) in zip(calls, pairs):
            if self.cold:
                self.sweep()
            start.record()
            before = time.perf_counter()
            call()
            host.append(time.perf_counter() - before)
            end.record()
            # Already past the start: the device waited for the host somewhere between the two events.
            late.append(start.query())
        clock = clocks.read()  # while the device is busy
        torch.cuda.synchronize()
        if any(late):
            self.head = min(2 * self.head, LONGEST_HEAD)
        return Batch([start.elapsed_time(end) * 1e-3 for start, end in pairs], late, host, clock)


class HostClock:
    """The host's clock around each call, for work that is done when the call returns."""

    method = "host"

    def __init__(self, cold: bool):
        # Ones: the pages of zeros that nobody wrote are one and the same page of memory.
        self.buffer = np.ones(_host_cache_bytes() // 8) if cold else None

    def times(self, calls: Sequence[Callable]) -> Batch:
        seconds = []
        for call in calls:
            if self.buffer is not None:
                self.buffer.max()  # reads, as on a GPU
            before = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - before)
        return Batch(seconds, [False] * len(seconds), [0.0] * len(seconds), None)


class GraphClock:
    """CUDA graphs that hold each call `repeats` times: no launch cost and no events around single kernels."""

    method = "graph"

    def __init__(self, cold: bool, repeats: int | None = None):
        if DEVICE != "cuda":
            raise RuntimeError("CUDA graphs need a GPU and this machine has none: use time_gpu here")
        self.repeats = repeats or 20  # cold: about 2 ms of sweeps and calls a replay
        self.replays = EventClock(cold=False)
        self.sweep = self.replays.sweep if cold else None
        self.graphs: dict[tuple, Callable] = {}

    def times(self, calls: Sequence[Callable]) -> Batch:
        if self.sweep is None:
            batch = self.replays.times([self._graph(call) for call in calls])
            seconds, late = batch.seconds, batch.late
        else:
            pairs = [graph for call in calls for graph in (self._graph(self.sweep, call), self._graph(self.sweep))]
            batch = self.replays.times(pairs)
            seconds = [both - sweep for both, sweep in zip(batch.seconds[::2], batch.seconds[1::2])]
            late = [one or other for one, other in zip(batch.late[::2], batch.late[1::2])]
        return Batch([s / self.repeats for s in seconds], late, [0.0] * len(calls), batch.clock)

    def _graph(self, *calls: Callable) -> Callable[[], None]:
        if calls not in self.graphs:
            self.graphs[calls] = self._captured(calls)
        return self.graphs[calls]

    def _captured(self, calls: Sequence[Callable]) -> Callable[[], None]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # compilation and lazy loading must not fall into the capture
            for call in calls * 2:
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(self.repeats):
                for call in calls:
                    call()
        return graph.replay


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def _host_cache_bytes() -> int:
    """Twice the last cache, between 32 and 128 MiB."""
    try:
        with open("/sys/devices/system/cpu/cpu0/cache/index3/size") as file:
            size = 2 * 1024 * int(file.read().strip().rstrip("K"))
    except (OSError, ValueError):
        size = 0
    return min(max(size, 32 * 2**20), 128 * 2**20)
