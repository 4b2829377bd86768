"""Everything is captured in one graph that is never replayed."""

import torch

KILLED_BY = "a few inputs"


def step(x, w):
    for row in w:
        x = x + torch.sin(x * row)
    return x


def run_many(xs, w, out):
    step(xs[0], w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(len(xs)):
            out[i] = step(xs[i], w)
