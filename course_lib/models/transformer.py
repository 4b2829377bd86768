"""A small decoder-only transformer, written plainly: every product of matrices is one line.

Tokens (B, T) come in, logits (B, T, vocabulary) go out. Pre-norm blocks: attention over what came before, then an MLP
of four times the width, each added to its input. No biases, no dropout, and the last layer shares no weights: so that
its FLOPs can be counted on paper, as `Sizes.products` does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Sizes:
    vocabulary: int = 512
    context: int = 128  # the longest sequence
    width: int = 128
    heads: int = 4
    layers: int = 2

    @property
    def weights(self) -> int:
        """Numbers in the matrices that multiply: 12 width^2 a layer, and the last one."""
        return 12 * self.layers * self.width**2 + self.vocabulary * self.width

    def products(self, batch: int, tokens: int) -> dict[str, list[tuple[int, int, int, int]]]:
        """The matrix products of the forward pass: name -> (how many at once, m, n, k) of each."""
        rows, d, head = batch * tokens, self.width, self.width // self.heads
        layer = {
            "qkv": [(1, rows, 3 * d, d)],
            "scores": [(batch * self.heads, tokens, tokens, head)],
            "values": [(batch * self.heads, tokens, head, tokens)],
            "out": [(1, rows, d, d)],
            "up": [(1, rows, 4 * d, d)],
            "down": [(1, rows, d, 4 * d)],
        }
        return {name: one * self.layers for name, one in layer.items()} | {"logits": [(1, rows, self.vocabulary, d)]}

    def forward_flops(self, batch: int, tokens: int) -> int:
        """2 m n k of every product. The upper half of the scores is computed too, and then masked."""
        return sum(2 * math.prod(one) for several in self.products(batch, tokens).values() for one in several)

    def backward_flops(self, batch: int, tokens: int) -> int:
        """Two products for each of the forward pass: one for the gradient of either factor."""
        return 2 * self.forward_flops(batch, tokens)


class Attention(nn.Module):
    def __init__(self, sizes: Sizes):
        super().__init__()
        self.heads = sizes.heads
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width, bias=False)
        self.out = nn.Linear(sizes.width, sizes.width, bias=False)

    def forward(self, x):  # (B, T, width)
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5  # (B, heads, T, T)
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        mixed = weights @ v  # (B, heads, T, width / heads)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, sizes: Sizes):
        super().__init__()
        self.before_attention, self.before_mlp = (nn.LayerNorm(sizes.width, bias=False) for _ in "12")
        self.attention = Attention(sizes)
        self.up = nn.Linear(sizes.width, 4 * sizes.width, bias=False)
        self.down = nn.Linear(4 * sizes.width, sizes.width, bias=False)

    def forward(self, x):
        x = x + self.attention(self.before_attention(x))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class Transformer(nn.Module):
    def __init__(self, sizes: Sizes = Sizes()):
        super().__init__()
        self.sizes = sizes
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.places = nn.Embedding(sizes.context, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width, bias=False)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, tokens):  # (B, T) of integers
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self, tokens):
        """Cross entropy of every next token, in nats."""
        logits = self(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
