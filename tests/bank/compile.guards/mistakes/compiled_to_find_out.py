"""Asks the compiler."""

import torch

KILLED_BY = "one dimension grows"


def compiles(calls, dynamic, marked, limit):
    count, said = [], []

    def backend(graph, inputs):
        count.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: x.sin() * 2, backend=backend, dynamic=dynamic)
    for call in calls:
        x = torch.zeros(call["shape"], dtype=getattr(torch, call["dtype"]), requires_grad=call["needs_grad"])
        before = len(count)
        compiled(x)
        said.append(len(count) > before)
    return said
