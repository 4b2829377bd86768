"""Nested data with tensors in it, as JSON: what ranks are given and what they report. Both sides use this file.

A tensor travels as its bytes in base64, inside the message that has a largest size; nothing is unpickled, and whatever
does not fit is refused.
"""

from __future__ import annotations

import base64
import math
from typing import Any

import torch

TAG = "$"
DEEPEST = 12  # levels of lists and dicts
DIMENSIONS, LONGEST = 16, 1 << 31  # of a tensor: more than any answer has
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
# those that can be computed with: torch has more, some of which end the process that looks at their elements
TYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (*FLOATS, *INTEGERS, torch.bool)}


class WireError(ValueError):
    """Something that does not travel."""


def pack(value: Any, depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise WireError("data that is nested too deeply")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        if name not in TYPES:
            raise WireError(f"a tensor of {name}")
        raw = value.detach().cpu().contiguous().reshape(-1)
        data = raw.view(torch.uint8).numpy().tobytes() if raw.numel() else b""
        return {TAG: "tensor", "dtype": name, "shape": list(value.shape), "data": base64.b64encode(data).decode()}
    if isinstance(value, list | tuple):
        return [pack(one, depth + 1) for one in value]
    if isinstance(value, dict):
        return {TAG: "dict", "items": [[pack(key, depth + 1), pack(one, depth + 1)] for key, one in value.items()]}
    raise WireError(f"a {type(value).__name__} does not travel: tensors, numbers, strings, lists and dicts do")


def unpack(value: Any, depth: int = 0) -> Any:
    """The data again; WireError for anything that `pack` does not make. It may come from a submission's process."""
    if depth > DEEPEST:
        raise WireError("data that is nested too deeply")
    if isinstance(value, list):
        return [unpack(one, depth + 1) for one in value]
    if not isinstance(value, dict):
        return value
    if value.get(TAG) == "tensor":
        return _tensor(value)
    items = value.get("items")
    if value.get(TAG) == "dict" and isinstance(items, list):
        pairs = [pair for pair in items if isinstance(pair, list) and len(pair) == 2]
        found = {}
        for key, one in pairs:
            if isinstance(key, list | dict):
                raise WireError("a key that is a list or a dict")
            found[key] = unpack(one, depth + 1)
        return found
    raise WireError("an object of an unknown kind")


def _tensor(value: dict) -> torch.Tensor:
    dtype, shape, data = TYPES.get(str(value.get("dtype"))), value.get("shape"), value.get("data")
    if dtype is None or not is_shape(shape) or not isinstance(data, str):
        raise WireError("a tensor without type, shape or data")
    return from_bytes(base64.b64decode(data, validate=True), dtype, shape)


def is_shape(value: Any) -> bool:
    """Whether this can be the shape of a tensor. The product of its sizes is then a number that is soon found."""
    return (
        isinstance(value, list)
        and len(value) <= DIMENSIONS
        and all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < LONGEST for n in value)
    )


def from_bytes(data: bytes, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    """The tensor that lies there row by row; `dtype` is one of TYPES and `shape` a shape."""
    raw = bytearray(data)
    if len(raw) != math.prod(shape) * dtype.itemsize:
        raise WireError(f"a tensor of shape {shape} with {len(raw)} bytes")
    if dtype == torch.bool and any(byte > 1 for byte in raw):
        raise WireError("a truth value that is neither")
    return torch.frombuffer(raw, dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)
