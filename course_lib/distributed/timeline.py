"""Who computed, who sent and who waited, on every rank, on one clock.

    def step(rank):
        with Recorder() as seen:
            with seen.span("forward"):
                loss = model(x)
            with seen.span("backward"):
                loss.backward()          # every collective inside is noted by itself
            model.finish()
        return seen.spans

    spans = together(launch(step, 2))    # with the waiting taken apart

A collective ends on all ranks when the last rank has arrived. For a rank that arrives early, most of the call is
waiting: `together` splits each call at the arrival of the last rank. Times are those of the host's monotonic clock,
which all processes of a host share; across hosts they cannot be compared.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["Recorder", "Span", "exposed_s", "together"]

# Calls of all ranks, under the names of torch 2.11 and 2.13, and calls of two ranks. isend and irecv cannot be
# replaced, because batch_isend_irecv compares functions by identity: put a span around those.
ALL = ("all_reduce", "broadcast", "reduce", "barrier", "all_gather", "all_to_all_single")
ALL += ("reduce_scatter_single", "reduce_scatter_tensor", "all_gather_single", "all_gather_into_tensor")
TWO = ("send", "recv")
COMPUTE, COMMUNICATION, WAITING = "compute", "communication", "waiting"


@dataclass(frozen=True)
class Span:
    rank: int
    kind: str  # "compute", "communication" or "waiting"
    label: str  # "backward", "all_reduce"
    start_s: float
    end_s: float
    number: int = -1  # of a collective: all ranks start the same ones in the same order

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


class Recorder:
    """Notes spans while it is entered. With a GPU they are times on the device, read from events at the end."""

    def __init__(self):
        self.spans: list[Span] = []
        self.rank = dist.get_rank()
        self.on_gpu = dist.get_backend() == "nccl"
        self._open: list[tuple[str, str, int, Any, list]] = []  # kind, label, number, start, [end]
        self._originals: dict[str, Callable] = {}
        self._collectives = 0

    def __enter__(self) -> Recorder:
        if self.on_gpu:
            self._side = torch.cuda.Stream()  # waits for a collective, so that the computing stream need not
            torch.cuda.synchronize()
            self._zero = torch.cuda.Event(enable_timing=True)
            self._zero.record()
            self._zero.synchronize()
            self._zero_s = time.monotonic()
        for name in (*ALL, *TWO):
            if hasattr(dist, name):
                self._originals[name] = getattr(dist, name)
                setattr(dist, name, self._noting(name, self._originals[name]))
        return self

    def __exit__(self, *_) -> None:
        for name, original in self._originals.items():
            setattr(dist, name, original)
        if self.on_gpu:
            torch.cuda.synchronize()
        for kind, label, number, start, ends in self._open:
            if ends:  # an operation that nobody waited for has no end
                self.spans.append(Span(self.rank, kind, label, self._read(start), self._read(ends[0]), number))
        self.spans.sort(key=lambda span: span.start_s)

    @contextlib.contextmanager
    def span(self, label: str, kind: str = COMPUTE) -> Iterator[None]:
        """What runs inside, under a name."""
        ends: list = []
        self._open.append((kind, label, -1, self._now(), ends))
        try:
            yield
        finally:
            ends.append(self._now())

    def _noting(self, name: str, original: Callable) -> Callable:
        def call(*args, **options):
            number = -1
            if name in ALL:
                number, self._collectives = self._collectives, self._collectives + 1
            ends: list = []
            label = name.removesuffix("_single").removesuffix("_tensor").removesuffix("_into")
            self._open.append((COMMUNICATION, label, number, self._now(), ends))
            work = original(*args, **options)
            if not isinstance(work, dist.Work):  # it has waited already
                ends.append(self._now())
            elif self.on_gpu:
                with torch.cuda.stream(self._side):
                    work.wait()
                    ends.append(self._now())
            else:
                work.get_future().then(lambda _: ends.append(self._now()))
            return work

        return call

    def _now(self):
        if not self.on_gpu:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _read(self, moment) -> float:
        return self._zero_s + self._zero.elapsed_time(moment) * 1e-3 if self.on_gpu else moment


def together(of_ranks: Sequence[Sequence[Span]]) -> list[Span]:
    """The spans of all ranks, from time 0 on, each collective split where its last rank arrived."""
    queued = [_one_at_a_time(spans) for spans in of_ranks]
    arrived: dict[int, float] = {}
    for span in (span for spans in queued for span in spans if span.number >= 0):
        arrived[span.number] = max(arrived.get(span.number, span.start_s), span.start_s)
    begin = min((span.start_s for spans in queued for span in spans), default=0.0)
    found = []
    for span in (span for spans in queued for span in spans):
        until = min(arrived.get(span.number, span.start_s), span.end_s)
        if until > span.start_s:
            found.append(replace(span, kind=WAITING, end_s=until))
        found.append(replace(span, start_s=max(span.start_s, until)))
    return [replace(span, start_s=span.start_s - begin, end_s=span.end_s - begin) for span in found]


def _one_at_a_time(spans: Sequence[Span]) -> list[Span]:
    """A collective that was started while another one ran begins when that one ends: they share a queue."""
    found, free = [], float("-inf")
    for span in sorted(spans, key=lambda span: (span.number, span.start_s)):
        if span.number >= 0:
            span = replace(span, start_s=min(max(span.start_s, free), span.end_s))
            free = max(free, span.end_s)
        found.append(span)
    return sorted(found, key=lambda span: span.start_s)


def exposed_s(spans: Sequence[Span], rank: int) -> float:
    """Seconds in which a rank sends or waits and computes nothing: what overlap has not hidden."""
    mine = [span for span in spans if span.rank == rank]
    cuts = sorted({moment for span in mine for moment in (span.start_s, span.end_s)})
    total = 0.0
    for start, end in itertools.pairwise(cuts):
        kinds = {span.kind for span in mine if span.start_s < end and span.end_s > start}
        total += end - start if kinds and COMPUTE not in kinds else 0.0
    return total
