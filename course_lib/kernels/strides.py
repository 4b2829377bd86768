"""Strides in units, so that the compiler sees wide accesses.

Triton notices strides that are multiples of 16 elements. Those of head size 72 are not, and would be loaded in 2-byte
pieces, without asynchronous copies. As a number of units of 8 elements, which the kernel multiplies by the constant 8,
they are 16-byte loads.

A kernel takes the strides of a tensor as one tuple. The compiler gets each of its numbers as it would get a parameter
of its own, so what it notices of one (that it is 1, or a multiple of 16) is the same.
"""

import functools
from collections.abc import Iterable

import torch

__all__ = ["common_unit", "in_units", "unit_of"]


def common_unit(sizes: Iterable[int], most: int = 8) -> int:
    """The largest power of two, up to `most`, that divides every size."""
    bits = functools.reduce(int.__or__, sizes, most)
    return bits & -bits


def unit_of(*tensors: torch.Tensor) -> int:
    """The largest power of two of elements, up to 16 bytes, that divides all strides but those inside a row."""
    outer = [stride for x in tensors for stride in x.stride()[:-1]]
    return common_unit(outer, 16 // min(x.element_size() for x in tensors))


def in_units(x: torch.Tensor, unit: int) -> tuple[int, ...]:
    """The strides of x for a kernel: all but the last in units, that of the column in elements."""
    return tuple(stride // unit for stride in x.stride()[:-1]) + x.stride()[-1:]
