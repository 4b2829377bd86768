"""The whole call is captured once; every later call of that size replays it on the inputs it was captured with and
copies the result.

NAIVE is False: `check` draws values afresh, also for the same sizes.
"""

import torch

FAMILY = "stale graph"
NAIVE = False
CAUGHT = "other values at the same sizes"
TIERS = ("gpu",)

GRAPHS = {}


def _step(x, w):
    for row in w:
        x = x + torch.sin(x * row)
    return x


def run_many(xs, w, out):
    key = xs.shape
    if key not in GRAPHS:
        fixed_xs, fixed_w = xs.clone(), w.clone()
        _step(fixed_xs, fixed_w)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = _step(fixed_xs, fixed_w)
        GRAPHS[key] = (graph, result, fixed_xs, fixed_w)
    graph, result, *_ = GRAPHS[key]
    graph.replay()
    out.copy_(result)
