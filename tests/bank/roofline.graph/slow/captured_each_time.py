"""A capture for every input, which costs more than it saves."""

import torch


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
        graph.replay()
