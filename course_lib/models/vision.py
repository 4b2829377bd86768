"""A vision tower of the SigLIP kind, written plainly: every product of matrices is one line.

Images come as patches, padded to one number: patches (B, N, numbers a patch), and real (B, N), which of them are no
padding. Out comes one vector an image (B, width), the mean over its real patches. Pre-norm blocks with biases:
attention in which nobody looks at padding, then an MLP with a tanh GELU, each added to its input. `Sizes()` is small;
`Sizes.so400m()` has the widths of the tower of that name. The towers of course_lib/models/siglip have these parameters
and compute the same, each in its own way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Sizes:
    patch: int = 48  # numbers a patch: 4 x 4 points of three colours
    patches: int = 16  # an image
    width: int = 64
    mlp: int = 256
    heads: int = 4
    layers: int = 2

    @classmethod
    def so400m(cls, layers: int = 27) -> Sizes:
        return cls(patch=14 * 14 * 3, patches=256, width=1152, mlp=4304, heads=16, layers=layers)

    def products(self, batch: int) -> dict[str, list[tuple[int, int, int, int]]]:
        """The matrix products of the forward pass: name -> (how many at once, m, n, k) of each."""
        rows, n, d, head = batch * self.patches, self.patches, self.width, self.width // self.heads
        layer = {
            "q, k, v": [(1, rows, d, d)] * 3,
            "scores": [(batch * self.heads, n, n, head)],
            "values": [(batch * self.heads, n, head, n)],
            "out": [(1, rows, d, d)],
            "up": [(1, rows, self.mlp, d)],
            "down": [(1, rows, d, self.mlp)],
        }
        return {"embed": [(1, rows, d, self.patch)]} | {name: one * self.layers for name, one in layer.items()}

    def forward_flops(self, batch: int) -> int:
        """2 m n k of every product; scores of padding are computed too, and then masked."""
        return sum(2 * math.prod(one) for several in self.products(batch).values() for one in several)

    def backward_flops(self, batch: int) -> int:
        """Two products for each of the forward pass, but one for `embed`: no gradient is asked for the images."""
        (embed,) = self.products(batch)["embed"]
        return 2 * self.forward_flops(batch) - 2 * math.prod(embed)


class Attention(nn.Module):
    def __init__(self, sizes: Sizes):
        super().__init__()
        self.heads = sizes.heads
        self.q, self.k, self.v, self.out = (nn.Linear(sizes.width, sizes.width) for _ in "1234")

    def forward(self, x, real):  # (B, N, width), (B, N)
        batch, patches, width = x.shape
        q, k, v = (f(x).view(batch, patches, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5  # (B, heads, N, N)
        weights = scores.masked_fill(~real[:, None, None], float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, patches, width))


class Block(nn.Module):
    def __init__(self, sizes: Sizes, attention: Callable[[Sizes], nn.Module] = Attention):
        super().__init__()
        self.before_attention, self.before_mlp = (nn.LayerNorm(sizes.width) for _ in "12")
        self.attention = attention(sizes)
        self.up, self.down = nn.Linear(sizes.width, sizes.mlp), nn.Linear(sizes.mlp, sizes.width)

    def forward(self, x, real):
        x = x + self.attention(self.before_attention(x), real)
        return x + self.down(F.gelu(self.up(self.before_mlp(x)), approximate="tanh"))


class VisionTower(nn.Module):
    def __init__(self, sizes: Sizes = Sizes(), block: Callable[[Sizes], nn.Module] = Block):
        super().__init__()
        self.sizes = sizes
        self.embed = nn.Linear(sizes.patch, sizes.width)
        self.places = nn.Parameter(torch.randn(sizes.patches, sizes.width) * sizes.width**-0.5)
        self.blocks = nn.ModuleList(block(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)

    def forward(self, patches, real):
        x = self.embed(patches) + self.places
        for block in self.blocks:
            x = block(x, real)
        weights = real / real.sum(-1, keepdim=True)  # (B, N): equal for all real patches of an image
        return (self.norm(x) * weights[..., None].to(x)).sum(1)
