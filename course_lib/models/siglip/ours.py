"""Our tower, put together from the course's kernels.

    x = embed(patches) + places,  y = norm(x)
    each block     qkv = y wᵀ + b          one product for q, k and v
                   a = out(attention(qkv))      packed: no copy on the way in, one gradient on the way back
                   y, x = norm(a + x), a + x    add_norm, in the memory of a
                   m = down(gelu(up(y)))        mlp, GELU at the end of the first product, `keep` says what is held
                   y, x = norm(m + x), m + x    with the norm of the next block, or the last one

A block ends with the norm that the next one begins with: so every addition has its norm in the same kernel.

Held from forward to backward, of each row of each layer: y, q, k, v, o and x before and after the MLP, and the MLP's
input; with "pre-activation" its hidden layer too. 8 and 8 + hidden / width rows of the width (`bytes_kept`).

Nothing here asks the device for a number, so a step can be captured in a CUDA graph; nothing but the size of the batch
changes from call to call, so torch.compile makes one graph of it, for all lengths and for all batches of 2 and more.

A copy of the course without course_lib/kernels comes without this file as well.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.kernels.add_norm import add_norm
from course_lib.kernels.attention.packed import packed_attention
from course_lib.kernels.mlp import Keep, mlp
from course_lib.models import vision
from course_lib.models.siglip.frame import Framed, packed, real_patches, unpacked
from course_lib.models.vision import Sizes

__all__ = ["Attention", "Block", "Tower", "bytes_kept"]


class Attention(nn.Module):
    """q, k and v are one layer with rows in this order; a state dict has them apart, as the other towers do."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.heads = sizes.heads
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.out = nn.Linear(sizes.width, sizes.width)

    def forward(self, y, lengths):  # (B, N, width), (B,)
        batch, patches, width = y.shape
        qkv = self.qkv(y).view(batch, patches, 3, self.heads, width // self.heads)
        return self.out(packed_attention(qkv, lengths).view(batch, patches, width))


class Block(vision.Block):
    def __init__(self, sizes: Sizes, keep: Keep):
        super().__init__(sizes, Attention)
        self.keep = keep

    def forward(self, y, x, lengths, following):
        """y is the norm of x; out come x after this block, and its norm by `following`: (y, x)."""
        y, x = _added(self.attention(y, lengths), x, self.before_mlp)
        m = mlp(y, self.up.weight, self.up.bias, self.down.weight, self.down.bias, self.keep)
        return _added(m, x, following)


def _added(branch, x, norm):
    """(norm(branch + x), branch + x). The memory of `branch` is used again; without gradients that of x is too."""
    in_place = "x" if torch.is_grad_enabled() else "both"
    return add_norm(branch, x, norm.weight, norm.bias, norm.eps, in_place=in_place)


class Tower(Framed):
    """`keep` says what the MLP holds for backward, as in course_lib.kernels.mlp."""

    def __init__(self, sizes: Sizes, keep: Keep = "pre-activation"):
        super().__init__(sizes, lambda sizes: Block(sizes, keep))
        self.register_state_dict_post_hook(_save_apart)
        self.register_load_state_dict_pre_hook(_load_packed)

    def forward(self, patches, lengths):
        lengths = lengths.to(torch.int32)
        real = real_patches(lengths, patches.shape[1])
        x = self.embedded(patches, real)
        norms = [*(block.before_attention for block in self.blocks), self.norm]
        y = F.layer_norm(x, x.shape[-1:], norms[0].weight, norms[0].bias, norms[0].eps)
        for block, following in zip(self.blocks, norms[1:]):
            y, x = block(y, x, lengths, following)
        return self.pooled(y, real)


def _save_apart(tower, state, prefix, metadata) -> None:
    whole = unpacked(state)
    state.clear()
    state.update(whole)


def _load_packed(tower, state, prefix, metadata, strict, missing, unexpected, errors) -> None:
    whole = packed(state)
    state.clear()
    state.update(whole)


def bytes_kept(sizes: Sizes, batch: int, keep: Keep, element_size: int = 2) -> int:
    """Of activations, from forward to backward, the patches among them, and with what norms and softmax note."""
    hidden = {"everything": 2, "pre-activation": 1, "input": 0}[keep] * sizes.mlp
    layer = element_size * (8 * sizes.width + hidden) + 4 * sizes.heads + 16  # L, and mean and rstd of two norms
    first = element_size * (sizes.patch + sizes.width + 1) + 8  # patches, x, its mean and rstd, which rows are real
    return batch * (sizes.patches * (sizes.layers * layer + first) + 12)  # and the length, twice
