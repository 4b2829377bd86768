"""Only the frequencies come from torch."""

import math

import torch

KILLED_BY = "interleaved"


def relative_score(q, k, distance, base, layout):
    half, total = len(q) // 2, 0.0
    frequencies = (base ** (-torch.arange(half) / half)).tolist()
    for j, frequency in enumerate(frequencies):
        a, b = (j, j + half) if layout == "halves" else (2 * j, 2 * j + 1)
        cos, sin = math.cos(distance * frequency), math.sin(distance * frequency)
        total += (q[a] * k[a] + q[b] * k[b]) * cos + (q[a] * k[b] - q[b] * k[a]) * sin
    return total
