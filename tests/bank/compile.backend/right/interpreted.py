"""Counts by recursion into arguments; runs the graph with an interpreter."""

from collections import Counter

import torch
from torch import fx


def counting(counts):
    def backend(module, inputs):
        for kind, count in kinds(module).items():
            counts[kind] = counts.get(kind, 0) + count

        def run(*args):
            return fx.Interpreter(module).run(*args)

        return run

    return backend


def kinds(module):
    found = Counter()
    for node in module.graph.nodes:
        if node.op in ("call_function", "call_method"):
            found[getattr(node.target, "__name__", node.target)] += 1
        elif node.op == "get_attr":
            value = getattr(module, node.target, None)
            if isinstance(value, torch.fx.GraphModule):
                found += kinds(value)
    return found
