"""FLOPs and bytes of a whole model: every operator that ran, and sums by kind.

The caller passes the meter: a dispatch mode with `flops` and `bytes`, as lesson 03 writes it. Each operator runs under
a meter of its own, so every count belongs to one operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.roofline import Roof, Work, floor_s

__all__ = ["KINDS", "PHASES", "Call", "Kind", "by_kind", "tally"]

PHASES = ("forward", "backward")
KINDS = ("matrix products", "norms and softmax", "elementwise", "copies", "lookups")
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
_COPIES = ("clone", "copy_", "_to_copy", "cat", "stack", "repeat", "triu", "tril")
_FILLS = ("zero_", "fill_", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "arange")
_LOOKUPS = ("embedding", "embedding_dense_backward", "index", "index_put", "gather", "scatter", "nll_loss_forward",
            "nll_loss_backward")  # fmt: skip


class Call(NamedTuple):
    phase: str
    name: str  # "mm"
    kind: str
    work: Work


class Kind(NamedTuple):
    phase: str
    kind: str
    calls: int
    work: Work
    floor_s: float | None  # the sum of the floors of its calls, one after the other; None without a roof


def kind_of(func) -> str:
    """The kind of an operator. torch itself says which compute elementwise; their backward passes carry no tag."""
    name = _name(func)
    if name in _PRODUCTS:
        return "matrix products"
    if name in _COPIES + _FILLS:
        return "copies"
    if name in _LOOKUPS:
        return "lookups"
    forward = getattr(torch.ops.aten, name.removesuffix("_backward"), None)
    overloads = [func] + ([getattr(forward, one) for one in forward.overloads()] if forward else [])
    return "elementwise" if any(torch.Tag.pointwise in one.tags for one in overloads) else "norms and softmax"


class _Tally(TorchDispatchMode):
    def __init__(self, meter: Callable):
        super().__init__()
        self.meter, self.phase, self.calls = meter, PHASES[0], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with self.meter() as meter:
            out = func(*args, **(kwargs or {}))
        self.calls.append(Call(self.phase, _name(func), kind_of(func), Work(meter.flops, meter.bytes)))
        return out


def tally(meter: Callable, forward: Callable[[], torch.Tensor], backward: bool = True) -> tuple[Call, ...]:
    """Every operator of `forward()`, and of the backward pass from the number that it gives."""
    with _Tally(meter) as mode:
        out = forward()
        mode.phase = PHASES[1]
        if backward:
            out.backward()
    return tuple(mode.calls)


def by_kind(calls: Sequence[Call], roof: Roof | None = None) -> tuple[Kind, ...]:
    """Sums by pass and kind, in the order of PHASES and KINDS. What moves nothing, views above all, is left out."""
    rows = []
    for phase in PHASES:
        for kind in KINDS:
            work = [c.work for c in calls if (c.phase, c.kind) == (phase, kind) and (c.work.bytes or c.work.flops)]
            if work:
                floor = sum(floor_s(one, roof) for one in work) if roof else None
                rows.append(Kind(phase, kind, len(work), sum(work), floor))
    return tuple(rows)


def _name(func) -> str:
    return func.name().partition("::")[2].partition(".")[0]
