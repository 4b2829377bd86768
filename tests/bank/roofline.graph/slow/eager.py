"""No graph: every operation is launched."""

import torch


def step(x, w):
    for row in w:
        x = x + torch.sin(x * row)
    return x


def run_many(xs, w, out):
    for x, y in zip(xs, out):
        y.copy_(step(x, w))
