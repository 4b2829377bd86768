"""An operator whose kernels are registered on dispatch keys, looked at from all sides, as plain data.

`register(library)` gets a `torch.library.Library` of a new namespace, `library.ns`, and defines an operator `cap` in
it. Its kernel for the CPU is to call `cap_into`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from autograder.inside.probes.operators import Seen, is_of, laid_out, made_by_a_function, noted, numbers, or_error
from course_lib.given_kernels import cap_into

_number = itertools.count()
KEYS = ("CPU", "Meta", "Autograd", "CompositeImplicitAutograd", "CompositeExplicitAutograd")


def tensor(call: Mapping[str, Any]) -> torch.Tensor:
    """x as a case describes it; one seed gives the same values in every process."""
    generator = torch.Generator().manual_seed(call["seed"])
    values = torch.randn(call["shape"], generator=generator, dtype=torch.float64) * call["limit"]
    return laid_out(values.to(getattr(torch, call["dtype"])), call["layout"])


def looked_at(register: Callable, call: Mapping[str, Any]) -> dict[str, Any]:
    """What the operator computes and for whom, or what it raised."""
    before = _state()
    with torch.library._scoped_library(f"speed_of_light_cap{next(_number)}", "DEF") as library:
        register(library)
        space = getattr(torch.ops, library.ns)
        if not hasattr(space, "cap"):
            raise TypeError("no operator called `cap` was defined in the library that was given")
        if type(space.cap) is not torch._ops.OpOverloadPacket:
            raise TypeError(f"in place of the operator `cap` there is a {type(space.cap).__name__}")
        operator = partial(space.cap, limit=call["limit"]) if call["by_name"] else lambda x: space.cap(x, call["limit"])
        looks = {"result": _result, "meta": _meta, "gradients": _gradients, "second": _second, "seen": _seen}
        looks |= {"rule": _rule}
        looks |= {"no_grad": partial(_inside, torch.no_grad), "inference": partial(_inside, torch.inference_mode)}
        found = {name: or_error(look, operator, call) for name, look in looks.items()}
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        found["registered"] = [key for key in KEYS if has(f"{library.ns}::cap", key)]
    return found | {"state_kept": _state(restored=before) == before}


def _state(restored: tuple | None = None) -> tuple:
    """The keys that this thread includes and excludes; with `restored` those are set again afterwards."""
    sets = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    state = tuple(s.raw_repr() for s in sets)
    if restored is not None and state != restored:
        key = torch._C.DispatchKey.AutogradFunctionality
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, bool(restored[1] & _bit(key)))
    return state


def _bit(key) -> int:
    return torch._C.DispatchKeySet(key).raw_repr()


def _result(operator, call) -> dict[str, Any]:
    x = tensor(call)
    before = x.clone()
    with noted(cap_into) as wrote:
        out = operator(x)
    return {
        "values": numbers(out),
        "kernel_ran": is_of(out, wrote),
        "strides": list(out.stride()),
        "dtype": _name(out.dtype),
        "device": out.device.type,
        "shares_memory": out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and x.numel() > 0,
        "input_changed": not torch.equal(x, before),
    }


def _meta(operator, call) -> dict[str, Any]:
    """The same call without data."""
    x = tensor(call)
    empty = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta").requires_grad_()
    out = operator(empty)
    facts = {"shape": list(out.shape), "strides": list(out.stride()), "dtype": _name(out.dtype)}
    return facts | {"device": out.device.type, "requires_grad": out.requires_grad}


def _gradients(operator, call) -> list[float]:
    """Of sum(sin(out))."""
    x = tensor(call).requires_grad_()
    operator(x).sin().sum().backward()
    if x.grad is None:
        raise RuntimeError("no gradient came back to x")
    return numbers(x.grad)


def _second(operator, call) -> list[float]:
    """Of the sum of the squares of that gradient."""
    x = tensor(call).requires_grad_()
    (first,) = torch.autograd.grad(operator(x).sin().sum(), x, create_graph=True)
    return numbers(torch.autograd.grad((first * first).sum(), x)[0])


def _seen(operator, call) -> list[str]:
    """The operators that a mode sees of the call."""
    x = tensor(call).requires_grad_()
    with Seen() as mode:
        operator(x)
    return mode.names


def _rule(operator, call) -> bool:
    """Whether autograd got a rule for the operator, and does not go by its parts."""
    return made_by_a_function(operator(tensor(call).requires_grad_()))


def _inside(context, operator, call) -> dict[str, Any]:
    x = tensor(call).requires_grad_()
    with context():
        out = operator(x)
        return {"values": numbers(out), "requires_grad": out.requires_grad}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
