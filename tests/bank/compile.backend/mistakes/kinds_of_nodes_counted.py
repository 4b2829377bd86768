"""Counts node.op."""

from torch.fx import GraphModule

KILLED_BY = "a straight line"


def counting(counts):
    def backend(module, inputs):
        for part in module.modules():
            if not isinstance(part, GraphModule):
                continue
            for node in part.graph.nodes:
                kind = node.op
                counts[kind] = counts.get(kind, 0) + 1
        return module.forward

    return backend
