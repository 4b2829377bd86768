"""An operator of torch.library that wraps `gate_into`, looked at from all sides, as plain data."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.given_kernels import gate_into
from course_lib.torch_inside.reuse import fresh, settings

_number = itertools.count()
SPACE = "speed_of_light"
VIEWS = ("alias", "detach", "view_as", "_unsafe_view")  # what autograd does besides, with nothing to compute


@contextmanager
def noted(kernel: Callable) -> Iterator[list[torch.Tensor]]:
    """What this kernel writes in the meantime."""
    kernel.wrote = []
    try:
        yield kernel.wrote
    finally:
        kernel.wrote = None


def is_of(out: torch.Tensor, wrote: Sequence[torch.Tensor]) -> bool:
    """Whether these are the numbers that the kernel wrote, to the bit, in whatever order: that it ran is not enough."""
    made = torch.cat([torch.empty(0, dtype=out.dtype), *(one.reshape(-1).to(out.dtype) for one in wrote)])
    return torch.equal(made.sort().values, out.detach().reshape(-1).sort().values)


def made_by_a_function(out: torch.Tensor) -> bool:
    """Whether an autograd Function made it, and not operators of which autograd knows the derivatives itself."""
    return out.grad_fn is None or isinstance(out.grad_fn, torch.autograd.function.BackwardCFunction)


class Seen(TorchDispatchMode):
    """The operators that a mode sees, but for views."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().partition("::")[2].partition(".")[0]
        self.names += [] if name in VIEWS else [name]
        return func(*args, **(kwargs or {}))


def tensors(call: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y as a case describes them; one seed gives the same values in every process."""
    generator = torch.Generator().manual_seed(call["seed"])
    made = []
    for layout, needs in zip(call["layouts"], call["needs_grad"], strict=True):
        values = torch.randn(call["shape"], generator=generator, dtype=torch.float64).to(getattr(torch, call["dtype"]))
        made.append(laid_out(values, layout).requires_grad_(needs))
    return made[0], made[1]


def laid_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "transposed":
        return values.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "every second":
        return torch.stack([values, values], dim=-1)[..., 0]
    return values


def inspected(make: Callable, call: Mapping[str, Any]) -> dict[str, Any]:
    """What the operator that `make(name)` registers computes, alone, for autograd and under torch.compile."""
    short = f"gate{next(_number)}"
    operator = make(f"{SPACE}::{short}")
    if type(operator) not in (torch.library.CustomOpDef, torch._ops.OpOverload, torch._ops.OpOverloadPacket):
        kind = type(operator).__name__
        raise TypeError(f"expected the operator that torch.library registered under this name, got {kind}")
    if not hasattr(getattr(torch.ops, SPACE), short):
        raise NameError(f"no operator is registered under the name {SPACE}::{short}")
    with settings(recompile_limit=8), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "result": or_error(_result, operator, call),
            "gradients": or_error(_gradients, operator, call),
            "compiled": or_error(_compiled, operator, call),
            "opcheck": or_error(_opcheck, operator, call),
            "fake": or_error(_fake, operator, call),
            "below": or_error(_below, operator, call),
        }


def or_error(look: Callable, operator, call) -> Any:
    try:
        return look(operator, call)
    except Exception as error:
        return told(f"{type(error).__name__}: {error}")


def _result(operator, call) -> dict[str, Any]:
    x, y = (t.detach() for t in tensors(call))
    before = x.clone(), y.clone()
    with noted(gate_into) as wrote:
        out = operator(x, y)
    return {
        "values": numbers(out),
        "kernel_ran": is_of(out, wrote),
        "dtype": str(out.dtype).removeprefix("torch."),
        "strides": list(out.stride()),
        "shares_memory": any(out.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for t in (x, y)),
        "inputs_changed": not all(torch.equal(a, b) for a, b in zip((x, y), before, strict=True)),
    }


def _gradients(operator, call) -> list[list[float] | None]:
    """Of sum(sin(out)), for each input that needs one."""
    given = tensors(call)
    if not any(t.requires_grad for t in given):
        return [None, None]
    operator(*given).sin().sum().backward()
    return [None if t.grad is None else numbers(t.grad) for t in given]


def _compiled(operator, call) -> dict[str, Any]:
    """Between two other operators, through AOTAutograd: graphs, and what comes out."""
    graphs = []

    def backend(module, inputs):
        from torch._dynamo.backends.debugging import aot_eager

        graphs.append(module)
        return aot_eager(module, inputs)

    f = fresh("def f(x, y):\n    return operator(x + 0, y).sin()\n", operator=operator)
    out = torch.compile(f, backend=backend)(*tensors(call))
    return {"graphs": len(graphs), "values": numbers(out)}


def _opcheck(operator, call) -> dict[str, str]:
    """torch's own tests of an operator: "SUCCESS", or the beginning of what is wrong."""
    done = torch.library.opcheck(operator, tensors(call), raise_exception=False)
    return {name: told(str(said)) for name, said in done.items()}


def _fake(operator, call) -> dict[str, Any]:
    """The result for tensors without data; not every version of opcheck looks at strides."""
    with FakeTensorMode() as mode:
        out = operator(*(mode.from_tensor(t.detach()) for t in tensors(call)))
    return described(out)


def described(out: torch.Tensor) -> dict[str, Any]:
    dtype = str(out.dtype).removeprefix("torch.")
    return {"shape": list(out.shape), "strides": list(out.stride()), "dtype": dtype}


def _below(operator, call) -> dict[str, Any]:
    """What a mode sees, where gradients are asked for too, and whether autograd got a rule for the operator."""
    given = tensors(call)
    with Seen() as mode:
        out = operator(*given)
    return {"seen": [told(name) for name in mode.names].count("gate"), "rule": made_by_a_function(out)}


def told(text: str) -> str:
    """What torch says, without the number in the operator's name and the places of torch's files."""
    return re.sub(r" \(with implementation in .*?>\)|(?<=gate|_cap)\d+", "", text)[:300]


def numbers(tensor: torch.Tensor) -> list[float]:
    return tensor.detach().to(torch.float64).reshape(-1).tolist()
