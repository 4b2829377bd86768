"""A whole step by the host's clock, until the device has done it, and the same step as a CUDA graph.

For work that the host may be slower to ask for than the device is to do: `time_gpu` leaves the host out on purpose.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from course_lib.device import DEVICE

__all__ = ["captured", "waited_us"]


def waited_us(call: Callable[[], object], times: int = 30) -> float:
    """The median by the host's clock, from the call to the device's last kernel; without a GPU of a single call."""
    wait = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None
    seconds = []
    for _ in range(times if DEVICE == "cuda" else 1):
        wait()
        start = time.perf_counter()
        call()
        wait()
        seconds.append(time.perf_counter() - start)
    return median(seconds) * 1e6


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """The call as a CUDA graph that can be replayed. Three calls come before it, on a stream of their own."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
