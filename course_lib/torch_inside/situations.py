"""A call of one operator in a situation put together from a few facts, and the path it would take there.

The facts are those that people ask about: what kind of tensor, where it lives, what surrounds the call. Nothing is
computed: torch is asked for the keys at the moment before the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from course_lib.table import Table
from course_lib.torch_inside import keysets
from course_lib.torch_inside.callpath import call_path

_aten = torch.ops.aten
OPERATORS = {
    "x + y": _aten.add.Tensor,
    "x.add_(y)": _aten.add_.Tensor,
    "x.t()": _aten.t.default,
    "mm(x, y)": _aten.mm.default,
    "matmul(x, y)": _aten.matmul.default,
}
KINDS = {  # of x: what was made of an ordinary tensor, as keysets says it
    "an ordinary tensor": (),
    "made in inference mode": ("inference",),
    "conjugated": ("conj",),
    "sparse": (),
    "functionalised": ("functional",),
    "a wrapper subclass": ("wrapped",),
    "a fake tensor": (),
}
BOTH = ("made in inference mode", "a fake tensor")  # so is y, which would bring its own keys otherwise
AROUND = ("autocast", "inference_mode", "no_grad", "dispatch mode", "handler", "vmap")  # outermost first


def devices() -> tuple[str, ...]:
    return ("cpu", "cuda", "meta") if torch.cuda.is_available() else ("cpu", "meta")


def order() -> list[str]:
    """Every kind of key, highest first."""
    return keysets.in_order(torch._C._dispatch_keyset_full())


def tensor(kind: str, device: str, requires_grad: bool) -> torch.Tensor:
    if kind == "sparse":  # made as it is: nothing turns a dense tensor on meta into a sparse one
        return torch.empty(2, 2, layout=torch.sparse_coo, device=device, requires_grad=requires_grad)
    told = {"device": device, "layout": "strided", "requires_grad": requires_grad, "made": KINDS[kind]}
    made = keysets.tensor(told | {"dtype": "complex64" if kind == "conjugated" else "float32"})
    return FakeTensorMode().from_tensor(made) if kind == "a fake tensor" else made


def path_in(operator: str, kind: str, device: str, requires_grad: bool, around: Sequence[str]) -> Table:
    """The path of `operator` for such an x and a y on the same device, in these surroundings."""
    op, x = OPERATORS[operator], tensor(kind, device, requires_grad)
    y = {} if operator == "x.t()" else {"y": tensor(kind if kind in BOTH else "an ordinary tensor", device, False)}
    inner = [name for name in AROUND if name in around and name not in ("autocast", "vmap")]
    cast = torch.autocast("cuda" if device == "cuda" else "cpu", dtype=torch.bfloat16)
    with cast if "autocast" in around else nullcontext():
        return keysets.within(inner, lambda: _asked(lambda one: call_path(op, x=one, **y), x, "vmap" in around))


def _asked(ask: Callable[[torch.Tensor], Table], x: torch.Tensor, mapped: bool) -> Table:
    """ask(x), or for x as vmap hands it to its function."""
    if not mapped:
        return ask(x)
    heard = []
    torch.func.vmap(lambda one: (heard.append(ask(one)), one)[1])(x)
    return heard[0]
