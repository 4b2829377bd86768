"""The loop ends one input early."""

import torch

KILLED_BY = "a few inputs"


_graphs = {}


def step(x, w):
    for row in w:
        x = x + torch.sin(x * row)
    return x


def _captured(n, w):
    """The graph for inputs of n numbers with its static buffers; made once a size."""
    if n not in _graphs:
        static_x, static_w = torch.zeros(n, device=w.device), w.clone()
        step(static_x, static_w)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            static_y = step(static_x, static_w)
        _graphs[n] = graph, static_x, static_w, static_y
    return _graphs[n]


def run_many(xs, w, out):
    graph, static_x, static_w, static_y = _captured(xs.shape[1], w)
    static_w.copy_(w)
    for i in range(len(xs) - 1):
        static_x.copy_(xs[i])
        graph.replay()
        out[i].copy_(static_y)
