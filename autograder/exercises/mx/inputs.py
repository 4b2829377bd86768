"""How matrices in the format are drawn, and how numbers are drawn that are hard to quantise."""

import torch

from autograder.exercise import Draw
from autograder.exercises.mx.mxint8 import group_count


def mantissas(draw: Draw, rows: int, columns: int, gap=0, low=-128) -> torch.Tensor:
    """Any int8, rows `gap` apart."""
    return draw.integers(rows, columns, low=low, high=127, dtype=torch.int8, strides=(columns + gap, 1))


def exponents(draw: Draw, rows: int, columns: int, group: int, low=100, high=140) -> torch.Tensor:
    return draw.integers(rows, group_count(columns, group), low=low, high=high, dtype=torch.uint8)


def powers(draw: Draw, rows: int, columns: int, group: int, low: int, high: int) -> torch.Tensor:
    """(rows, columns): a power of two that all elements of a group share, in float64."""
    exponent = draw.integers(rows, group_count(columns, group), low=low, high=high, dtype=torch.int64)
    return torch.exp2(exponent.double()).repeat_interleave(group, 1)[:, :columns]


def signs(draw: Draw, *shape: int) -> torch.Tensor:
    return torch.where(draw.uniform(*shape) < 0.5, -1.0, 1.0).double()
