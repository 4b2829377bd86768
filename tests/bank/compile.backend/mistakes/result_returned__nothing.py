"""Counts and returns nothing."""

from torch.fx import GraphModule

KILLED_BY = "a straight line"


def counting(counts):
    def backend(module, inputs):
        for part in module.modules():
            if not isinstance(part, GraphModule):
                continue
            for node in part.graph.nodes:
                if node.op == "call_function":
                    kind = node.target.__name__
                elif node.op == "call_method":
                    kind = node.target
                else:
                    continue
                counts[kind] = counts.get(kind, 0) + 1

    return backend
