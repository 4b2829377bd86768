"""What a function does with the network, seen from inside a rank: what it sent to whom, and what it did not wait for.

A mode of the dispatcher sees every operator of torch.distributed, however it was imported, and those of DDP too. What
runs in the background is replaced by something as unhelpful as its contract allows, so that a race is certain and not
merely likely: what is to come holds NaN until `wait()`, and what is being sent is compared then with what it was.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.distributed import place

CHANGED = "what was being sent was changed before its wait()"
NOT_WAITED = "something that ran in the background was never waited for"
GAPS = "Tensors must be contiguous"  # as NCCL says it

ROWS = (torch.contiguous_format,)
FORMATS = {4: (*ROWS, torch.channels_last), 5: (*ROWS, torch.channels_last_3d)}  # dimensions -> what NCCL takes as well
POINT, BATCH = ("isend", "irecv"), "batch_isend_irecv"
IN_PLACE = ("all_reduce",)
INTO = ("reduce_scatter_single", "reduce_scatter_tensor", "all_gather_single", "all_gather_into_tensor")


@dataclass
class Traffic:
    sent: dict[int, list[int]] = field(default_factory=dict)  # rank -> messages, bytes; by sends, not by collectives
    # operator, the bytes of its tensors, and whether it ran in the background beyond the next mark; marks have -1 bytes
    collectives: list[list] = field(default_factory=list)
    marks: int = 0
    notes: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        return {"sent": self.sent, "collectives": self.collectives, "notes": self.notes}


_watching: Traffic | None = None  # of the block that this process is in


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
                _as_nccl(args)
                self.traffic.collectives.append([name, max((_nbytes(arg) for arg in args), default=0), False])
        return func(*args, **(kwargs or {}))


def _nbytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(map(_nbytes, value)) if isinstance(value, list | tuple) else 0


def _as_nccl(value: Any) -> None:
    """Refuse what NCCL refuses in a collective, and gloo takes: a verdict is to be the same with both."""
    if isinstance(value, list | tuple):
        for one in value:
            _as_nccl(one)
    elif isinstance(value, torch.Tensor) and not any(
        value.is_contiguous(memory_format=format_) for format_ in FORMATS.get(value.dim(), ROWS)
    ):
        raise ValueError(f"{GAPS}: NCCL refuses others, so this check does. Send .contiguous(), and copy it back")


class Pending:
    """Something in the background. What is to come lies elsewhere until `wait()`; what is sent may not change."""

    def __init__(self, work, traffic: Traffic, comes=(), sent=(), entry: list | None = None):
        self.work, self.traffic, self.waited = work, traffic, False
        self.entry, self.since = entry, traffic.marks
        self.comes = comes  # (where it belongs, where it lies)
        self.sent = [(tensor, tensor.clone()) for tensor in sent]
        self._one_by_one = threading.Lock()  # a future is done in a thread of gloo's

    def wait(self, *args) -> bool:
        self.work.wait(*args)
        self._settle()
        return True

    def get_future(self) -> torch.futures.Future:
        """With what came; that is in its place as soon as the future is done, whether or not somebody waits for it."""

        def done(future) -> list[torch.Tensor]:
            future.value()  # raises what went wrong
            self._settle(here=False)
            return [place_ for place_, _ in self.comes]

        future = self.work.get_future().then(done)
        # On a GPU futures belong to streams, and who waits for one there does not stand still.
        return future if any(place_.is_cuda for place_, _ in self.comes) else Waited(self, future)

    def is_completed(self) -> bool:
        done = self.work.is_completed()
        if done:
            self._settle()
        return done

    def _settle(self, here: bool = True) -> None:
        """here: the submission stood still for it."""
        with self._one_by_one:
            if here and self.entry is not None and self.since == self.traffic.marks:
                self.entry[2] = False
            if self.waited:
                return
            self.waited = True
            for place_, private in self.comes:
                place_.copy_(private)
            if not all(_same_bits(before, tensor) for tensor, before in self.sent):
                self.traffic.notes.append(CHANGED)

    def __getattr__(self, name):
        return getattr(self.work, name)


class Waited(torch.futures.Future):
    """A future that tells when somebody stands still for it, or for what follows from it."""

    def __init__(self, pending: Pending, future: torch.futures.Future):
        super().__init__()
        self.pending = pending
        future.add_done_callback(self._pass_on)

    def _pass_on(self, future: torch.futures.Future) -> None:
        try:
            self.set_result(future.value())
        except Exception as error:
            self.set_exception(error)

    def wait(self) -> Any:
        return self._here(super().wait)

    def value(self) -> Any:
        return self._here(super().value)

    def done(self) -> bool:
        return super().done() and self._here(super().done)

    def _here(self, asks: Callable[[], Any]) -> Any:
        answer = asks()
        self.pending._settle()
        return answer

    def then(self, follows: Callable) -> torch.futures.Future:
        return Waited(self.pending, super().then(follows))


def _poison(tensor: torch.Tensor) -> None:
    tensor.fill_(float("nan") if tensor.is_floating_point() else torch.iinfo(tensor.dtype).min)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape:  # resized in the meantime
        return False
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)) if a.numel() else True


def _strict(traffic: Traffic, pending: list[Pending]) -> dict[str, Callable]:
    """Stand-ins by name. Those of collectives are for async_op=True; without it the original is called."""
    original = {name: getattr(dist, name) for name in (*POINT, BATCH, *IN_PLACE, *INTO) if hasattr(dist, name)}

    def keep(work, **what) -> Pending:
        pending.append(Pending(work, traffic, **what))
        return pending[-1]

    def begun(work, **what) -> Pending:
        traffic.collectives[-1][2] = True
        return keep(work, entry=traffic.collectives[-1], **what)

    def isend(tensor, *args, **options):
        return keep(original["isend"](tensor, *args, **options), sent=[tensor])

    def irecv(tensor, *args, **options):
        private = torch.empty_like(tensor)
        work = original["irecv"](private, *args, **options)
        _poison(tensor)
        return keep(work, comes=[(tensor, private)])

    def in_place(name: str) -> Callable:
        def call(tensor, *args, **options):
            if not _in_background(args, options):
                return original[name](tensor, *args, **options)
            _as_nccl(tensor)  # a clone has no gaps
            private = tensor.clone()
            work = original[name](private, *args, **options)
            _poison(tensor)
            return begun(work, comes=[(tensor, private)])

        return call

    def into(name: str) -> Callable:
        def call(output, tensor, *args, **options):
            if not _in_background(args, options):
                return original[name](output, tensor, *args, **options)
            _as_nccl((output, tensor))
            private, given = torch.empty_like(output), tensor.clone()
            work = original[name](private, given, *args, **options)
            apart = tensor.untyped_storage().data_ptr() != output.untyped_storage().data_ptr()
            kept = begun(work, comes=[(output, private)], sent=[tensor] if apart else [])
            _poison(output)
            return kept

        return call

    def batch(operations):
        """Begun as one, as it was asked for: one by one, what two ranks send each other would wait in NCCL's queue."""
        since = len(pending)
        works = original[BATCH](operations)  # which calls our isend and irecv
        begun_here = pending[since:]
        if works and works[0] not in begun_here:  # gloo has a work for each operation, NCCL one for all
            for one in begun_here:
                one.work = works[0]
        return begun_here

    strict = {"isend": isend, "irecv": irecv, BATCH: batch}
    strict |= {name: in_place(name) for name in IN_PLACE} | {name: into(name) for name in INTO}
    return {name: stand_in for name, stand_in in strict.items() if hasattr(dist, name)}


def _in_background(args: tuple, options: dict) -> bool:
    return bool(options.get("async_op") or (args and args[-1] is True))


@contextlib.contextmanager
def watched(names: dict[str, Any] | None = None) -> Iterator[Traffic]:
    """Inside, what this thread sends is noted, and what runs in the background is strict.

    names: of code that has run before, which may have imported from torch.distributed what is replaced here.
    """
    global _watching
    traffic, pending = Traffic(), []
    strict = _strict(traffic, pending)
    # batch_isend_irecv's P2POp compares with the names of the second
    places = [vars(dist), vars(distributed_c10d), *([names] if names is not None else [])]
    stand_ins = {id(getattr(dist, name)): strict[name] for name in strict}
    before = [(place_, name, value) for place_ in places for name, value in place_.items() if id(value) in stand_ins]
    try:
        _watching = traffic
        for place_, name, value in before:
            place_[name] = stand_ins[id(value)]
        with _Watch(traffic):
            yield traffic
    finally:
        _watching = None
        for place_, name, value in before:
            place_[name] = value
    for one in pending:
        if not one.waited:
            traffic.notes.append(NOT_WAITED)
            one.work.wait()  # what is let go of unfinished is not sent, and the other rank would wait for ever


def mark(label: str, ends: bool = True) -> None:
    """Put a word among the collectives that are noted: what comes after belongs to it.

    ends: what is waited for only behind it ran in the background.
    """
    if _watching is not None:
        _watching.marks += ends
        _watching.collectives.append([label, -1, False])


def reported(
    run: Callable, load: Callable[[], Callable], shard: Any, common: dict[str, Any], names: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What `run(function, shard, **common)` returns, and what travelled meanwhile. What is returned can be anything."""
    with watched(names) as traffic:
        value = run(load(), _placed(shard), **common)
    return {"value": value, "traffic": traffic.plain()}


def _placed(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(place())
    return [_placed(one) for one in value] if isinstance(value, list) else value
