"""Attention in tiles at work: an error where the scores of all keys are made at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _InTiles(TorchDispatchMode):
    """Refuses attention ready-made, and a number for each key at once: of every query, or of one query by itself."""

    def __init__(self, queries: int, keys: int, head_size: int):
        super().__init__()
        self.queries, self.keys, self.head_size = queries, keys, head_size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().partition("::")[2].partition(".")[0]
        if "attention" in name:
            raise ValueError(f"{name} was called: write the walk over the keys yourself")
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.is_floating_point() and self._is_of_all_keys(out.shape):
            raise ValueError(f"all scores at once: {name} made {tuple(out.shape)}, take `block` keys at a time")
        return out

    def _is_of_all_keys(self, shape: torch.Size) -> bool:
        whole = Counter((self.queries, self.keys)) <= Counter(shape)
        transposed = shape[-2:] == (self.head_size, self.keys)  # k or v itself
        row = self.queries != self.keys and shape[-1:] == (self.keys,) and not transposed
        return whole or row


def in_tiles(function: Callable, q, k, v, causal: bool, scale: float, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the function returns; nothing is refused where a row is one block, or where each key is one."""
    if block == 1 or block >= k.shape[2]:
        return function(q, k, v, causal, scale, block)
    with _InTiles(q.shape[2], k.shape[2], q.shape[3]):
        return function(q, k, v, causal, scale, block)
