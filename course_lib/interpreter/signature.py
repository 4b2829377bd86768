"""The types and constants of a launch's arguments: enough to compile a kernel that the interpreter ran."""

import inspect

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["signature_of"]

TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}
TYPES |= {torch.bool: "i1", torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5"}
TYPES |= {getattr(torch, f"{kind}int{bits}"): f"{kind or 'i'}{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)}


def signature_of(function, named: dict) -> tuple[dict[str, str | tuple], dict]:
    """(the type of each argument, the values of constants) of one launch; `named`: without launch options."""
    types, constants, parameters = {}, {}, inspect.signature(function).parameters
    for name, value in named.items():
        # a compiled launch takes the number 1 for a constant too
        fixed = value is None or hasattr(value, "fn") or (type(value) is int and value == 1)
        if fixed or "constexpr" in str(parameters[name].annotation):
            constants[name] = value
        else:
            types[name] = _type(value)
    return types, constants


def _type(value) -> str | tuple:
    """The type as `compile_kernel` takes it. A value of another type gets a name that the compiler refuses."""
    if isinstance(value, tuple):
        types = [one if one is None or (type(one) is int and one == 1) else _type(one) for one in value]
        return type(value)(*types) if hasattr(value, "_fields") else tuple(types)
    if isinstance(value, torch.Tensor):
        return f"*{TYPES.get(value.dtype, value.dtype)}"
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{TYPES.get(value.base.dtype)}{list(value.block_shape)}>"
    if isinstance(value, int):
        return "i1" if isinstance(value, bool) else "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32" if isinstance(value, float) else type(value).__name__
