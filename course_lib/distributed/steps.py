"""A training step on paper: when gradients are complete, when their buckets travel, and how much of that is not hidden.

The model has four numbers and no more: how long forward and backward take, when in the backward pass each gradient is
complete (evenly by its bytes), what a collective costs (a line, alpha and beta), and by how much computing slows down
while something travels, because both need the same memory and processors. Collectives share one queue.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.distributed.costs import Line
from course_lib.distributed.timeline import COMMUNICATION, COMPUTE, Span

__all__ = ["MIB", "Step", "step_on_paper"]

MIB = 2**20


@dataclass(frozen=True)
class Step:
    spans: tuple[Span, ...]
    buckets: tuple[int, ...]  # bytes of each, in the order in which they travel
    alone_s: float  # the step without communication

    @property
    def seconds(self) -> float:
        return max(span.end_s for span in self.spans)

    @property
    def exposed_s(self) -> float:
        """What data parallel training costs: this step minus the same step without communication."""
        return self.seconds - self.alone_s


def step_on_paper(
    gradients: Sequence[int],
    bucket_bytes: float,
    line: Line,
    forward_s: float,
    backward_s: float,
    slowed: float = 0.0,
    overlap: bool = True,
) -> Step:
    """gradients: bytes of each, in the order in which the backward pass completes them.

    slowed: share of the computing speed that is lost while something travels, 0 to below 1. Without overlap nothing
    travels before the backward pass has ended.
    """
    buckets = _filled(gradients, bucket_bytes)
    total = sum(buckets)
    done = [backward_s * part / total for part in itertools.accumulate(buckets)]  # of the backward pass, in its seconds
    now = busy_until = forward_s
    spans, progress, queued = [Span(0, COMPUTE, "forward", 0.0, forward_s)], 0.0, 0
    for number, nbytes in enumerate(buckets):
        needed = done[number] if overlap else backward_s
        now, progress = _computed(now, progress, needed, busy_until, slowed)
        start = max(now, busy_until)
        busy_until = start + line.seconds(nbytes)
        spans.append(Span(0, COMMUNICATION, "all_reduce", start, busy_until, queued))
        queued += 1
    now, _ = _computed(now, progress, backward_s, busy_until, slowed)
    spans.append(Span(0, COMPUTE, "backward", forward_s, now))
    return Step(tuple(spans), tuple(buckets), forward_s + backward_s)


def _computed(now: float, progress: float, needed: float, busy_until: float, slowed: float) -> tuple[float, float]:
    """When and how far the backward pass has come, from `progress`; something travels until `busy_until`."""
    if needed <= progress:
        return now, progress
    while_busy = max(0.0, busy_until - now)
    if (needed - progress) <= while_busy * (1 - slowed):
        return now + (needed - progress) / (1 - slowed), needed
    return now + while_busy + (needed - progress - while_busy * (1 - slowed)), needed


def _filled(gradients: Sequence[int], most: float) -> list[int]:
    """Neighbours together while they fit; one that is larger alone."""
    buckets: list[int] = []
    for nbytes in gradients:
        if buckets and buckets[-1] + nbytes <= most:
            buckets[-1] += nbytes
        else:
            buckets.append(nbytes)
    return buckets
