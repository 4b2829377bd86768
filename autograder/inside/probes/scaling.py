"""A tensor subclass that stands for `held * scale`, at work: what each of several expressions gives, as plain data.

Every expression is worked out with fresh tensors: x and y of the class, p and q ordinary, n a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from autograder.inside.probes.operators import laid_out, numbers


def tensors(make: Callable, call: Mapping[str, Any]) -> dict[str, Any]:
    """x, y, p and q, all of one square shape, and n."""
    generator = torch.Generator().manual_seed(call["seed"])
    names: dict[str, Any] = {"n": call["n"], "F": F, "torch": torch}
    for name in "xypq":
        values = torch.randn(call["shape"], generator=generator, dtype=torch.float64).to(getattr(torch, call["dtype"]))
        names[name] = laid_out(values, call["layout"])
    for name, scale in zip("xy", call["scales"], strict=True):
        names[name] = make(names[name], scale)
    return names


def worked_out(make: Callable, expressions: Sequence[str], call: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each expression what came, or what it raised, and what it left in x and p."""
    if not issubclass(type(make), type) or not issubclass(make, torch.Tensor):
        raise TypeError("expected a subclass of torch.Tensor")
    return [_one(make, expression, call) for expression in expressions]


def _one(make: Callable, expression: str, call: Mapping[str, Any]) -> dict[str, Any]:
    names = tensors(make, call)
    if not issubclass(type(names["x"]), make):
        raise TypeError("what the class makes is not of this class")
    held = names["x"].held
    try:
        if call["backward"]:
            return {"gradients": _gradients(make, expression, names)}
        result = eval(compile(expression, "<expression>", "eval"), names)
        return {"result": _told(make, result, names["x"], held)} | {
            "x": _told(make, names["x"], names["x"], held),
            "p": _told(make, names["p"], names["x"], held),
        }
    except Exception as error:
        return {"raised": named(type(error)), "says": f"{error}"[:200]}


def named(kind: type) -> str:
    """The name with which a class was made. `kind.__name__` is what its metaclass says, None for one."""
    return type.__dict__["__name__"].__get__(kind)


def _gradients(make: Callable, expression: str, names: dict[str, Any]) -> dict[str, list[float]]:
    """Of sum(sin(result)), for x and p."""
    for name in "xp":
        names[name].requires_grad_()
    eval(compile(expression, "<expression>", "eval"), names).sin().sum().backward()
    return {name: _values(make, names[name].grad) for name in "xp" if names[name].grad is not None}


def _told(make: Callable, value: Any, x: torch.Tensor, held: torch.Tensor) -> Any:
    if isinstance(value, list | tuple):
        return [_told(make, one, x, held) for one in value]
    if not isinstance(value, torch.Tensor):
        return {"kind": named(type(value))}
    facts = {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    facts |= {"strides": list(value.stride()), "values": _values(make, value)}
    if not isinstance(value, make):
        return {"kind": "Tensor"} | facts
    same = value.held.untyped_storage().data_ptr() == held.untyped_storage().data_ptr()
    return {"kind": "Scaled", "scale": float(value.scale), "memory_of_x": same, "is_x": value is x} | facts


def _values(make: Callable, tensor: torch.Tensor) -> list[float]:
    return numbers(tensor.held.detach().to(torch.float64) * tensor.scale if isinstance(tensor, make) else tensor)
