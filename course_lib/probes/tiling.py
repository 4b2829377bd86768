"""Attention in tiles at work: an error where the scores of all keys are made at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")  # what every product of matrices comes down to


class _InTiles(TorchDispatchMode):
    """Refuses attention ready-made, and products with a number for each query and each key."""

    def __init__(self, queries: int, keys: int):
        super().__init__()
        self.sizes = Counter((queries, keys))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().partition("::")[2].partition(".")[0]
        if "attention" in name:
            raise ValueError(f"{name} was called: write the walk over the keys yourself")
        out = func(*args, **(kwargs or {}))
        if name in PRODUCTS and self.sizes <= Counter(out.shape):
            raise ValueError(f"all scores at once: {name} made {tuple(out.shape)}, take `block` keys at a time")
        return out


def in_tiles(function: Callable, q, k, v, causal: bool, scale: float, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the function returns, where a row has more than one block."""
    if block >= k.shape[2]:
        return function(q, k, v, causal, scale, block)
    with _InTiles(q.shape[2], k.shape[2]):
        return function(q, k, v, causal, scale, block)
