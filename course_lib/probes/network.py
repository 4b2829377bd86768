"""What a function does with the network, seen from inside a rank: what it sent to whom, and what it did not wait for.

A mode of the dispatcher sees every operator of torch.distributed, however it was imported, and those of DDP too. Sends
and receives that run in the background are replaced by ones that are as unhelpful as their contract allows, so that a
race is certain and not merely likely: what is to be received holds NaN until `wait()`, and what is being sent is
compared at `wait()` with what it was.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.distributed import place

CHANGED = "what isend was sending was changed before its wait()"
NOT_WAITED = "a send or receive was never waited for"


@dataclass
class Traffic:
    sent: dict[int, list[int]] = field(default_factory=dict)  # rank -> messages, bytes; by sends, not by collectives
    collectives: list[list] = field(default_factory=list)  # operator and the bytes of its tensors, in order
    notes: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        return {"sent": self.sent, "collectives": self.collectives, "notes": self.notes}


class _Watch(TorchDispatchMode):
    def __init__(self, traffic: Traffic):
        super().__init__()
        self.traffic = traffic

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            name = func._schema.name.removeprefix("c10d::").strip("_")
            if name == "send":
                told = self.traffic.sent.setdefault(int(args[2]), [0, 0])
                told[0] += 1
                told[1] += _nbytes(args[0])
            elif not name.startswith("recv"):
                self.traffic.collectives.append([name, max((_nbytes(arg) for arg in args), default=0)])
        return func(*args, **(kwargs or {}))


def _nbytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(map(_nbytes, value)) if isinstance(value, list | tuple) else 0


class Pending:
    """A send or receive in the background."""

    def __init__(self, work, tensor: torch.Tensor, private: torch.Tensor | None, traffic: Traffic):
        self.work, self.tensor, self.private, self.traffic = work, tensor, private, traffic
        self.before = tensor.clone() if private is None else None
        self.waited = False

    def wait(self, *args) -> bool:
        self.work.wait(*args)
        self._settle()
        return True

    def is_completed(self) -> bool:
        done = self.work.is_completed()
        if done:
            self._settle()
        return done

    def _settle(self) -> None:
        if self.waited:
            return
        self.waited = True
        if self.private is not None:
            self.tensor.copy_(self.private)
        elif not _same_bits(self.before, self.tensor):
            self.traffic.notes.append(CHANGED)

    def __getattr__(self, name):
        return getattr(self.work, name)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape:  # resized in the meantime
        return False
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)) if a.numel() else True


@contextlib.contextmanager
def watched() -> Iterator[Traffic]:
    """Inside, what this thread sends is noted, and background sends and receives are strict."""
    traffic, pending = Traffic(), []
    isend, irecv = dist.isend, dist.irecv

    def strict_isend(tensor, *args, **options):
        work = isend(tensor, *args, **options)
        pending.append(Pending(work, tensor, None, traffic))
        return pending[-1]

    def strict_irecv(tensor, *args, **options):
        private = torch.empty_like(tensor)
        work = irecv(private, *args, **options)
        tensor.fill_(float("nan") if tensor.is_floating_point() else torch.iinfo(tensor.dtype).min)
        pending.append(Pending(work, tensor, private, traffic))
        return pending[-1]

    def strict_batch(operations):
        return [one.op(one.tensor, one.peer, one.group, one.tag) for one in operations]

    strict = {"isend": strict_isend, "irecv": strict_irecv, "batch_isend_irecv": strict_batch}
    places = (dist, distributed_c10d)  # batch_isend_irecv's P2POp compares with the names of the second
    before = [(module, name, getattr(module, name)) for module in places for name in strict]
    try:
        for module, name, _ in before:
            setattr(module, name, strict[name])
        with _Watch(traffic):
            yield traffic
    finally:
        for module, name, original in before:
            setattr(module, name, original)
    for one in pending:
        if not one.waited:
            traffic.notes.append(NOT_WAITED)
            one.work.wait()  # what is let go of unfinished is not sent, and the other rank would wait for ever


def called(rank: int, probe: str, packed: bytes, shards: Sequence[Any], common: dict[str, Any]) -> dict[str, Any]:
    """In a rank: the probe with the function and this rank's shard, under watch. What is returned can be anything."""
    module, _, name = probe.partition(":")
    run: Callable = getattr(importlib.import_module(module), name)
    shard = shards[rank].to(place()) if isinstance(shards[rank], torch.Tensor) else shards[rank]
    with watched() as traffic:
        function = cloudpickle.loads(packed)  # in here: names that it imported from torch.distributed are watched too
        value = run(function, shard, **common)
    return {"value": value, "traffic": traffic.plain()}
