"""Copy in, replay, copy out; a graph for each size, warmed up on a side stream when the size is first seen."""

import torch


GRAPHS = {}


def step(x, w):
    for row in w:
        x = x + torch.sin(x * row)
    return x


def captured(x, w):
    """A graph for inputs like x, and its static input, weights and output."""
    static_x, static_w = x.clone(), w.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(static_x, static_w)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static_y = step(static_x, static_w)
    return graph, static_x, static_w, static_y


def run_many(xs, w, out):
    if xs.shape[1] not in GRAPHS:
        GRAPHS[xs.shape[1]] = captured(xs[0], w)
    graph, static_x, static_w, static_y = GRAPHS[xs.shape[1]]
    static_w.copy_(w)
    for x, y in zip(xs, out):
        static_x.copy_(x)
        graph.replay()
        y.copy_(static_y)
