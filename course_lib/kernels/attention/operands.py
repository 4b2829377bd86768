"""What a launcher says about its tensors: strides, alignment, width of offsets, precision, tiles to be fetched."""

import functools

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from course_lib.kernels.attention.parts import split

__all__ = ["LOG2_E", "aligned", "precision", "spans", "strides", "tiles", "unit"]

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


@functools.cache
def _has_copy_engine(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def aligned(x: torch.Tensor) -> bool:
    """Could a copy engine fetch tiles of x? It wants rows of adjacent elements that start at multiples of 16 bytes."""
    steps = x.stride()[:-1]
    return (
        x.element_size() == 2
        and x.stride(-1) == 1
        and x.numel() > 0
        and all(step > 0 and step % 8 == 0 for step in steps)
        and x.data_ptr() % 16 == 0
    )


def tiles(rows: int, *tensors: torch.Tensor) -> tuple[TensorDescriptor | None, ...]:
    """For each tensor (B, H, N, D) what the copy engine (TMA) has to know to fetch `rows` rows of one head, the main
    part of their columns. All None where it does not reach them.

    One thread asks for a whole tile, and what lies outside the tensor arrives as zeros. Other loads cost every thread
    addresses and masks: 28 registers of 134 in the forward pass at head size 64.
    """
    main, _ = split(tensors[0].shape[-1])
    if not all(_has_copy_engine(x.device) and aligned(x) for x in tensors):
        return (None,) * len(tensors)
    return tuple(TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, main]) for x in tensors)
