"""Where a step's time goes, by family of operators, beside the floor of each family; forward and backward apart.

    rows = by_family(lambda: tower(patches, lengths), list(tower.parameters()), patches=256, roof=roof)

Every operator runs inside a range with the name of its family, and a profile sums the device's time by range (on a CPU
the time of the range itself). The same pass counts what the floor is made of: torch's own count of FLOPs, and the
bytes of every tensor that an operator reads or writes, each once. Kernels that are launched outside of torch's
operators belong to no family; those behind operators of one's own are "own operators" and have no floor. The mode that
names operators costs the host some microseconds each: the time of the device does not change where the host is ahead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from course_lib.profiling import record, summarize
from course_lib.roofline import Roof, Work, floor_s

__all__ = ["FAMILIES", "PHASES", "Family", "by_family", "family_of"]

PHASES = ("forward", "backward")
FAMILIES = ("products with weights", "attention", "GELU", "norms", "additions, sums", "copies", "own operators")
_PRODUCTS, _COPIES = ("mm", "addmm"), ("clone", "copy_", "_to_copy", "cat")
_OF_ATTENTION = ("bmm", "baddbmm", "_softmax", "_softmax_backward_data", "_safe_softmax")
_MOVES_NOTHING = ("empty", "new_empty", "detach", "_unsafe_view")


class Family(NamedTuple):
    phase: str
    family: str
    calls: int
    bytes: int  # read and written by its operators
    seconds: float | None  # of the device; None where nothing was timed
    floor_s: float | None  # the sum of the floors of its operators; None where they are no operators of torch


def family_of(func, tensors: Sequence[torch.Tensor], patches: int) -> str:
    """What works on scores, (..., patches, patches), belongs to attention, whatever it does."""
    name = _name(func)
    if func.namespace != "aten":
        return "own operators"
    if name in _PRODUCTS:
        return "products with weights"
    scores = any(t.dim() > 2 and t.shape[-2:] == (patches, patches) for t in tensors)
    if scores or name in _OF_ATTENTION or name.startswith("_scaled_dot_product"):
        return "attention"
    if name.startswith("gelu"):
        return "GELU"
    if name.startswith("native_layer_norm"):
        return "norms"
    return "copies" if name in _COPIES else "additions, sums"


def by_family(
    forward: Callable[[], torch.Tensor],
    weights: Sequence[torch.Tensor],
    *,
    patches: int,
    roof: Roof,
    timed: bool = True,
) -> tuple[Family, ...]:
    """Rows in the order of PHASES and FAMILIES, for those that ran. Untimed, it only counts, on meta tensors too."""
    mode = _Named(patches, roof)

    def step() -> None:
        mode.work.clear()
        with mode:
            mode.phase = PHASES[0]
            y = forward()
            mode.phase = PHASES[1]
            torch.autograd.grad(y, weights, torch.ones_like(y))

    if timed:
        seen = summarize(record(step))
        seconds = {r.name: r.device_s if seen.on == "GPU" else r.host_s for r in seen.ranges}
    else:
        seconds = step()
    rows = []
    for key in ((phase, family) for phase in PHASES for family in FAMILIES):
        if work := mode.work[key]:
            floor = None if key[1] == FAMILIES[-1] else sum(floor_s(one, roof) for one in work)
            took = seconds[": ".join(key)] if seconds else None
            rows.append(Family(*key, len(work), sum(one.bytes for one in work), took, floor))
    return tuple(rows)


class _Named(TorchDispatchMode):
    def __init__(self, patches: int, roof: Roof):
        super().__init__()
        self.patches, self.roof, self.phase = patches, roof, PHASES[0]
        self.work: dict[tuple[str, str], list[Work]] = defaultdict(list)  # (phase, family) -> of its operators

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.is_view or _name(func).startswith(_MOVES_NOTHING):
            return func(*args, **kwargs)
        read = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        key = self.phase, family_of(func, read, self.patches)
        with torch.profiler.record_function(": ".join(key)):
            out = func(*args, **kwargs)
        self.work[key].append(_work(func, args, kwargs, read, out))
        return out


def _work(func, args, kwargs, read, out) -> Work:
    written = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
    count = flop_registry.get(func.overloadpacket)
    flops = count(*args, **kwargs, out_val=out) if count else 0
    return Work(flops, sum({id(t): t.nbytes for t in (*read, *written)}.values()))


def _name(func) -> str:
    return func.overloadpacket.__name__
