"""The naive tower, as one finds them: right, and careless of memory.

Every layer makes the mask again. The scores are written to memory, in 16 bits and then in 32 for the softmax, and the
probabilities in both. q, k and v are three products. Everything that backward may want is kept: at B images of N
patches, H heads and 2 bytes a number, 6 B H N^2 bytes a layer for the probabilities alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from course_lib.models import vision
from course_lib.models.siglip.frame import Framed, real_patches
from course_lib.models.vision import Sizes

__all__ = ["Attention", "Block", "Tower"]


class Attention(vision.Attention):
    def forward(self, x, lengths):  # (B, N, width), (B,)
        batch, patches, width = x.shape
        q, k, v = (f(x).view(batch, patches, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = (q @ k.mT).to(torch.promote_types(x.dtype, torch.float32)) * (width // self.heads) ** -0.5
        keys = real_patches(lengths, patches)[:, None, None]  # (B, 1, 1, N), in every layer
        weights = scores.masked_fill(~keys, float("-inf")).softmax(-1)  # (B, heads, N, N)
        return self.out((weights.to(x.dtype) @ v).transpose(1, 2).reshape(batch, patches, width))


class Block(vision.Block):
    def __init__(self, sizes: Sizes):
        super().__init__(sizes, Attention)

    def forward(self, x, lengths):
        x = x + self.attention(self.before_attention(x), lengths)
        return x + self.down(F.gelu(self.up(self.before_mlp(x)), approximate="tanh"))


class Tower(Framed):
    def __init__(self, sizes: Sizes):
        super().__init__(sizes, Block)

    def forward(self, patches, lengths):
        real = real_patches(lengths, patches.shape[1])
        x = self.embedded(patches, real)
        for block in self.blocks:
            x = block(x, lengths)
        return self.pooled(self.norm(x), real)
