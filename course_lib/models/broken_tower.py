"""A small vision tower as one finds them: it runs, and torch.compile makes many small graphs of it.

Images come as patches, padded to one number: patches (B, N, 4), lengths (B,) how many of the N are real. Out comes one
vector an image (B, width). Four habits end a graph; lesson 02 finds and repairs them.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import nn

PATCH = 4  # numbers a patch


class Block(nn.Module):
    """Attention and an MLP, each added to its input."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, lengths):  # (B, N, width), (B,)
        longest = lengths.max().item()
        keys = torch.arange(longest, device=x.device) < lengths[:, None]  # (B, longest)
        x = x + self.attention(x, keys, longest)
        return x + self.down(torch.relu(self.up(x)))

    def attention(self, x, keys, longest):
        batch, patches, width = x.shape
        q, k, v = self.qkv(x).view(batch, patches, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        k, v = k[:, :, :longest], v[:, :, :longest]  # (B, heads, longest, width / heads)
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
        scores = scores.masked_fill(~keys[:, None, None], float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, patches, width))


class Tower(nn.Module):
    """`positions` vectors were learnt; for another number of patches they are interpolated, corner to corner."""

    block = Block

    def __init__(self, width: int = 8, heads: int = 2, layers: int = 2, positions: int = 6):
        super().__init__()
        self.embed = nn.Linear(PATCH, width)
        self.table = nn.Parameter(torch.randn(positions, width))
        self.blocks = nn.ModuleList(self.block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.seconds: list[float] = []

    def forward(self, patches, lengths):
        started = time.perf_counter()
        print("tower:", tuple(patches.shape))
        x = self.embed(patches) + self.positions(patches.shape[1])
        for block in self.blocks:
            x = block(x, lengths)
        x = self.pooled(self.norm(x), lengths)
        self.seconds.append(time.perf_counter() - started)
        return x

    def positions(self, patches: int):
        """(patches, width), between the learnt ones."""
        table = self.table.detach().cpu().numpy()
        at = np.linspace(0, len(table) - 1, patches)
        columns = [np.interp(at, np.arange(len(table)), column) for column in table.T]
        return torch.from_numpy(np.stack(columns, axis=1)).to(self.table)

    def pooled(self, x, lengths):
        """The mean over the real patches of each image."""
        real = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None]
        return (x * real).sum(1) / lengths[:, None]
