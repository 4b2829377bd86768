"""Towers in ledgers on meta tensors: attention keeps there what a fused kernel keeps, and computes nothing.

On meta tensors `scaled_dot_product_attention` falls back to writing its scores, which no GPU would do. Here it is one
node that holds q, k, v, o and a number a query, and gives memory of the right size: enough to count by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.memory import Block, Ledger, ledger
from course_lib.models.vision import Sizes

__all__ = ["SMALL", "fused_attention", "step_on_paper"]

SMALL = "all else"  # statistics, masks, gradients of weights, the result; figures draw an owner of this name in grey


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):  # (B, heads, N, D)
        o, rows = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, o, rows)
        return o

    @staticmethod
    def backward(ctx, do):
        return tuple(torch.empty_like(one) for one in ctx.saved_tensors[:3])


@contextmanager
def fused_attention() -> Iterator[None]:
    """Inside, `scaled_dot_product_attention` is the stand-in, forward and backward."""
    own = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = lambda query, key, value, *mask, **settings: _Fused.apply(query, key, value)
    try:
        yield
    finally:
        F.scaled_dot_product_attention = own


def step_on_paper(
    kind: Callable[[Sizes], nn.Module], sizes: Sizes, images: int, dtype: torch.dtype = torch.bfloat16
) -> Ledger:
    """Who owns what in one pass there and back of a tower on meta tensors, with the owners called as in the lesson."""
    with torch.device("meta"):
        tower = kind(sizes).to(dtype)
        patches = torch.empty(images, sizes.patches, sizes.patch, dtype=dtype)
        lengths = torch.empty(images, dtype=torch.int64)
    with fused_attention():
        made = ledger(lambda: tower(patches, lengths))
    return replace(made, blocks=tuple(replace(b, owner=_called(b, sizes, images)) for b in made.blocks))


def _called(block: Block, sizes: Sizes, images: int) -> str:
    """By what made it and how large it is: what is kept for backward has another name in each tower."""
    if " keeps " not in block.owner:
        return block.owner if block.owner == Ledger.PASSING else SMALL
    scores = images * sizes.heads * sizes.patches**2
    numbers = block.bytes // images // sizes.patches  # bytes a row
    if block.bytes in (2 * scores, 4 * scores):
        return "probabilities"
    if numbers in (2 * sizes.mlp, 4 * sizes.mlp):
        return "gelu(h)" if block.operator == "gelu" else "h"
    if numbers < 2 * sizes.width:
        return SMALL
    return {"native_layer_norm": "results of norms", "add": "x"}.get(block.operator, "q, k, v, o")
