"""What a kernel reads when it takes a tensor's memory for something else: wrong strides, no mask."""

from collections.abc import Sequence

import torch

from autograder.buffers import span


def as_read(tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """The memory from where `tensor` begins, read with another shape and strides: NaN in gaps and beyond the end."""
    size = max(span(tensor.shape, tensor.stride()), span(shape, strides))
    memory = torch.full((size,), float("nan"), dtype=tensor.dtype, device=tensor.device)
    memory.as_strided(tensor.shape, tensor.stride()).copy_(tensor)
    return memory.as_strided(shape, strides)
