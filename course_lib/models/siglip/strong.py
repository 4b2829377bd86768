"""The strong tower: what torch alone does well, without a kernel of one's own.

The mask is made once, and in the form that the kernels of scaled_dot_product_attention add to the scores, so that no
layer turns booleans into numbers again. The rest is plain: torch.compile makes one graph of it and fuses the norms, the
additions and GELU by itself. `WAYS` are the settings worth trying; which is fastest, in which direction, is for
`python -m benchmarks tower` to say, and the fastest of each direction is the baseline.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from course_lib.models import vision
from course_lib.models.siglip.frame import Framed, real_patches
from course_lib.models.vision import Sizes

__all__ = ["WAYS", "Attention", "Block", "Tower", "Way"]


class Way(NamedTuple):
    compiled: bool
    backend: SDPBackend  # for `sdpa_kernel`, around the call and outside of what is compiled


# Flash takes no mask, and the math backend writes the scores.
WAYS = {
    f"{name}, {'compiled' if compiled else 'eager'}": Way(compiled, backend)
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("efficient", SDPBackend.EFFICIENT_ATTENTION))
    for compiled in (False, True)
}


class Attention(vision.Attention):
    def forward(self, x, mask):  # (B, N, width), (B, 1, 1, N)
        batch, patches, width = x.shape
        q, k, v = (f(x).view(batch, patches, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # (B, heads, N, width / heads)
        return self.out(o.transpose(1, 2).reshape(batch, patches, width))


class Block(vision.Block):
    def __init__(self, sizes: Sizes):
        super().__init__(sizes, Attention)

    def forward(self, x, mask):
        x = x + self.attention(self.before_attention(x), mask)
        return x + self.down(F.gelu(self.up(self.before_mlp(x)), approximate="tanh"))


class Tower(Framed):
    def __init__(self, sizes: Sizes):
        super().__init__(sizes, Block)

    def forward(self, patches, lengths):
        real = real_patches(lengths, patches.shape[1])
        x = self.embedded(patches, real)
        mask = torch.zeros_like(real, dtype=x.dtype).masked_fill(~real, float("-inf"))[:, None, None]
        for block in self.blocks:
            x = block(x, mask)
        return self.pooled(self.norm(x), real)
