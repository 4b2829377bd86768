"""Everything is captured and nothing replayed."""

import torch

KILLED_BY = "a few inputs"


def step(x, w):
    for row in w:
        x = x + torch.sin(x * row)
    return x


def run_many(xs, w, out):
    step(xs[0], w)
    for x, y in zip(xs, out):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y.copy_(step(x, w))
