"""What a launcher says about its tensors: strides, alignment, width of offsets, precision."""

import functools

import torch

__all__ = ["LOG2_E", "precision", "spans", "strides", "unit"]

LOG2_E = 1.4426950408889634


def unit(*tensors: torch.Tensor) -> int:
    """The largest power of two, up to 16 bytes, that divides all strides but those inside a row.

    Triton notices strides that are multiples of 16; those of head size 72 are not, and would be loaded in 2-byte
    pieces, without asynchronous copies. Told in units of 8 elements, they are 16-byte loads.
    """
    outer = [stride for x in tensors for stride in x.stride()[:-1]]
    bits = functools.reduce(int.__or__, outer, 16 // min(x.element_size() for x in tensors))
    return bits & -bits


def strides(x: torch.Tensor, step: int) -> tuple[int, ...]:
    """Of batch, head and row in units of `step`; of the column in elements."""
    return tuple(stride // step for stride in x.stride()[:-1]) + x.stride()[-1:]


def spans(rows: int, columns: int, *tensors: torch.Tensor) -> bool:
    """Does one block of some tensor reach over 2^31 elements, so that offsets inside it need 64 bits?"""
    return any(rows * x.stride(2) + columns * x.stride(3) >= 2**31 for x in tensors)


def precision(dtype: torch.dtype) -> str:
    """fp32 keeps all its bits; to 2-byte types it makes no difference."""
    return "ieee" if dtype == torch.float32 else "tf32"
