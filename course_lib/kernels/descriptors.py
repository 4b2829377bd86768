"""Matrices as the copy engine (TMA) sees them: which it can address, and what it has to be told."""

import functools

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["by_rows_or_columns", "copy_engine", "describable", "described"]


@functools.cache
def copy_engine(device: torch.device) -> bool:
    """Compute capability 9.0 and later have one; the interpreter plays one."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (9, 0)


def describable(x: torch.Tensor) -> bool:
    """What the copy engine asks: adjacent elements in a row, rows that start at multiples of 16 bytes, no overlap."""
    pitch = x.stride(0)
    return (
        x.numel() > 0
        and x.stride(1) == 1
        and pitch >= x.shape[1]
        and pitch * x.element_size() % 16 == 0
        and x.data_ptr() % 16 == 0
    )


def by_rows_or_columns(x: torch.Tensor) -> bool:
    return describable(x) or describable(x.T)


def described(x: torch.Tensor, by_column: bool, rows: int, columns: int) -> TensorDescriptor:
    """A descriptor for blocks of (rows, columns) of x, or of its transpose where x is stored by columns."""
    if by_column:
        return TensorDescriptor.from_tensor(x.T, [columns, rows])
    return TensorDescriptor.from_tensor(x, [rows, columns])
