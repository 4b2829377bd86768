"""What a kernel reads when it takes a tensor's memory for something else: wrong strides, no mask."""

from collections.abc import Sequence

import torch

from autograder.call.fences import input_poison, span


def as_read(tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """The memory from where `tensor` begins, read with another shape and strides; in gaps and beyond the end NaN,
    or the number that fences of integers hold."""
    size = max(span(tensor.shape, tensor.stride()), span(shape, strides))
    around = float("nan") if tensor.is_floating_point() else input_poison(tensor.dtype)
    memory = torch.full((size,), around, dtype=tensor.dtype, device=tensor.device)
    memory.as_strided(tensor.shape, tensor.stride()).copy_(tensor)
    return memory.as_strided(shape, strides)
