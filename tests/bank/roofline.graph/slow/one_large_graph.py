"""All inputs in one graph that is replayed once: it costs as much to record as to run eagerly."""

import torch


def step(x, w):
    for row in w:
        x = x + torch.sin(x * row)
    return x


def run_many(xs, w, out):
    step(xs[0], w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for x, y in zip(xs, out):
            y.copy_(step(x, w))
    graph.replay()
