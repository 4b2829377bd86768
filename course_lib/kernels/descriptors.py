"""Matrices as the copy engine (TMA) sees them: which ones it can address, and what it has to be told."""

import threading
from dataclasses import dataclass

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["Shifted", "by_rows_or_columns", "describable", "described", "make_context_current"]

_thread = threading.local()


@dataclass(frozen=True)
class Shifted:
    """The base of a descriptor that begins so many elements behind a tensor's start, or before it."""

    tensor: torch.Tensor
    elements: int

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def data_ptr(self) -> int:
        return self.tensor.data_ptr() + self.elements * self.tensor.element_size()


def make_context_current(x: torch.Tensor) -> None:
    """Call this before a descriptor of x is handed to a kernel: the driver writes it in a thread with a context only.

    A thread gets its context with its first allocation, load of a kernel, or launch. A launch writes descriptors before
    it asks for the context. So where a loaded kernel is the first work of a thread, as in a backward pass, which
    autograd runs in a thread of its own, the driver would say "invalid device context".
    """
    if x.is_cuda and not hasattr(_thread, "has_context"):
        torch.cuda.Event().record()  # the runtime makes the context current; a graph that is being captured allows it
        _thread.has_context = True


def describable(x: torch.Tensor) -> bool:
    """Can the copy engine address x by rows?

    It asks for adjacent elements in a row, for rows that start at multiples of 16 bytes, and for no overlap.
    """
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
    make_context_current(x)
    if by_column:
        return TensorDescriptor.from_tensor(x.T, [columns, rows])
    return TensorDescriptor.from_tensor(x, [rows, columns])
