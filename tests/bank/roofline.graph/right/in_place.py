"""One static buffer that the step changes in place; captured by hand on a side stream, once for each size."""

import functools

import torch


def step_in_place(x, w):
    for row in w:
        x.add_(torch.sin(x * row))


@functools.cache
def captured(n):
    """A graph for inputs of n numbers, and its static input, which becomes the output, and weights."""
    static_x, static_w = torch.zeros(n, device="cuda"), torch.zeros(16, n, device="cuda")
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step_in_place(static_x.clone(), static_w)
        graph.capture_begin()
        step_in_place(static_x, static_w)
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph, static_x, static_w


def run_many(xs, w, out):
    graph, static_x, static_w = captured(xs.shape[1])
    static_w.copy_(w)
    for x, y in zip(xs, out):
        static_x.copy_(x)
        graph.replay()
        y.copy_(static_x)
