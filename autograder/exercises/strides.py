"""How tensors lie in memory: the layouts that cases use, and what a kernel reads when it takes one for another."""

from collections.abc import Sequence

import torch

from autograder.call.fences import input_poison, span

PAST_INT32 = 2**30 + 8  # elements between neighbours: the third of them begins past 2^31


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def rows_apart(shape: Sequence[int], gap: int = 0) -> tuple[int, ...]:
    """Strides of (B, H, N, D) laid out as (B, N, H, D), as a projection leaves it; `gap` unused elements a row."""
    _, heads, n, head_size = shape
    row = heads * head_size + gap
    return (n * row, head_size, row, 1)


def columns_apart(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of (B, H, N, D) where the rows are adjacent and the columns are not: (B, H, D, N)."""
    _, heads, n, head_size = shape
    return (heads * n * head_size, n * head_size, 1, n)


def far_apart(tensor: torch.Tensor, apart: int = PAST_INT32) -> torch.Tensor:
    """The same values with `apart` elements between neighbours of the first dimension, nearly all of the memory gap."""
    memory = torch.empty((len(tensor) - 1) * apart + tensor[0].numel(), dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(tensor.shape, (apart, *contiguous(tensor.shape)[1:])).copy_(tensor)


def as_read(tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """The memory of `tensor`, from its first element on, read with another shape and strides.

    Gaps and the memory beyond the end are NaN. For integers they hold the number that fences of integers hold.
    """
    size = max(span(tensor.shape, tensor.stride()), span(shape, strides))
    around = float("nan") if tensor.is_floating_point() else input_poison(tensor.dtype)
    memory = torch.full((size,), around, dtype=tensor.dtype, device=tensor.device)
    # the gradient of a sum has strides of 0
    once = tensor[tuple(slice(None if step else 1) for step in tensor.stride())]
    memory.as_strided(once.shape, once.stride()).copy_(once)
    return memory.as_strided(shape, strides)
