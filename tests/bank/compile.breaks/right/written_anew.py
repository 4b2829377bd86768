"""A module of its own with the same weights; fused attention with a mask that is added."""

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x, bias):
        b, n, w = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + self.out(o.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(x)))


class RepairedTower(nn.Module):
    def __init__(self, width=8, heads=2, layers=2, positions=6):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.table = nn.Parameter(torch.randn(positions, width))
        self.blocks = nn.ModuleList([Layer(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, patches, lengths):
        b, n, _ = patches.shape
        real = torch.arange(n) < lengths.unsqueeze(1)
        bias = torch.zeros(b, 1, 1, n, dtype=patches.dtype).masked_fill(~real[:, None, None, :], -torch.inf)
        x = self.embed(patches) + self.between(n)
        for layer in self.blocks:
            x = layer(x, bias)
        x = torch.where(real[..., None], self.norm(x), 0)
        return x.sum(dim=1) / real.sum(dim=1, keepdim=True)

    def between(self, n):
        at = torch.linspace(0, len(self.table) - 1, n, dtype=self.table.dtype)
        low = at.floor().long().clamp(max=len(self.table) - 2)
        part = (at - low)[:, None]
        return self.table[low] * (1 - part) + self.table[low + 1] * part
