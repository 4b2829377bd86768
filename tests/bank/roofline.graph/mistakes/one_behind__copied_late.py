"""The next input is copied in after the replay."""

import torch

KILLED_BY = "a few inputs"


def step(x, w):
    for row in w:
        x = x + torch.sin(x * row)
    return x


def run_many(xs, w, out):
    static_x = xs[0].clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(static_x, w)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static_y = step(static_x, w)
    for x, y in zip(xs, out):
        graph.replay()
        static_x.copy_(x)
        y.copy_(static_y)
