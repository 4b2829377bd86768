"""Which dispatch keys a call meets, asked of torch itself, for tensors and surroundings described as plain data.

A tensor is a dict: `device` ("cpu" or "meta"), `requires_grad`, perhaps `layout` ("strided" or "sparse") and `dtype`
(float32), and `made`, what happened to it since, in order:

    "inference"    it was made in inference mode (only at the beginning)
    "view"         x.view(x.shape)
    "clone"        x.clone()
    "conj"         x.conj(), of a complex tensor: a view that is conjugated when it is read
    "subclass"     a subclass of torch.Tensor without a __torch_dispatch__ of its own
    "functional"   functionalised: torch._to_functional_tensor(x)
    "wrapped"      a wrapper subclass with a __torch_dispatch__

The surroundings are a list, outermost first:

    "no_grad", "enable_grad", "inference_mode", "inference_mode(False)", "autocast", "autocast(False)"
    "function mode"      a TorchFunctionMode
    "dispatch mode"      a TorchDispatchMode
    "handler"            in the __torch_dispatch__ of a TorchDispatchMode, which an operator has just entered
    "functionalization"  torch._enable_functionalization
    "below autograd"     what a kernel of Autograd makes before it redispatches
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# ------------------------------------------------------------------------------------------------ the tensors


class Subclass(torch.Tensor):
    pass


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner: torch.Tensor):
        kinds = {"dtype": inner.dtype, "device": inner.device, "requires_grad": inner.requires_grad}
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, **kinds)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError("only its keys are asked for")


STEPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda x: x.view(x.shape),
    "clone": torch.clone,
    "conj": torch.conj,
    "subclass": lambda x: x.as_subclass(Subclass),
    "functional": torch._to_functional_tensor,
    "wrapped": Wrapper,
}


def tensor(told: Mapping[str, Any]) -> torch.Tensor:
    steps = list(told["made"])
    with torch.inference_mode(mode=steps[:1] == ["inference"]):
        made = torch.ones(2, 2, dtype=getattr(torch, told.get("dtype", "float32")), device=told["device"])
        made = made.to_sparse() if told.get("layout") == "sparse" else made
        made.requires_grad_(told["requires_grad"])
    for step in steps[steps[:1] == ["inference"] :]:
        made = STEPS[step](made)
    return made


# ------------------------------------------------------------------------------------------- the surroundings


class Passing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Watching(TorchDispatchMode):
    """Calls `then` in the handler of the first operator that comes."""

    def __init__(self, then: Callable | None = None):
        super().__init__()
        self.then, self.came = then, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.then is not None:
            then, self.then = self.then, None
            self.came.append(then())
        return func(*args, **(kwargs or {}))


CONTEXTS: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "inference_mode(False)": lambda: torch.inference_mode(False),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast(False)": lambda: torch.autocast("cpu", enabled=False),
    "function mode": Passing,
    "dispatch mode": Watching,
    "below autograd": torch._C._AutoDispatchBelowAutograd,
}


@cache
def _one() -> torch.Tensor:
    return torch.ones(())


def within(around: Sequence[str], then: Callable[[], Any]) -> Any:
    """What `then()` returns in these surroundings. Functionalization cannot be nested: torch refuses the second."""
    given = _one()  # an ordinary tensor, from outside of whatever is entered here
    if not around:
        return then()
    first, *rest = around
    if first == "handler":
        with Watching(lambda: within(rest, then)) as mode:
            given.neg()
        return mode.came[0]
    if first == "functionalization":
        torch._enable_functionalization(reapply_views=True)
        try:
            return within(rest, then)
        finally:
            torch._disable_functionalization()
    with CONTEXTS[first]():
        return within(rest, then)


# ---------------------------------------------------------------------------------------------------- the keys


def key_set(tensors: Sequence[torch.Tensor]) -> DispatchKeySet:
    """The keys of all tensors and those that this thread includes, less those that it excludes."""
    keys = torch._C._dispatch_tls_local_include_set()
    for one in tensors:
        keys = keys | torch._C._dispatch_keys(one)
    return keys - torch._C._dispatch_tls_local_exclude_set()


def in_order(keys: DispatchKeySet) -> list[str]:
    """The key with the highest priority, the highest of those below, and so on: of each kind only one backend's."""
    names = []
    while (first := keys.highestPriorityTypeId()) != DispatchKey.Undefined:
        names.append(first.name)
        keys = keys.remove(first)
    return names


def met(tensors: Sequence[Mapping[str, Any]], around: Sequence[str]) -> list[str]:
    """The keys of a call with these tensors in these surroundings, highest priority first."""
    made = [tensor(told) for told in tensors]
    return within(around, lambda: in_order(key_set(made)))
