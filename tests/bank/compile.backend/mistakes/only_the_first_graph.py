"""Counts when nothing has been counted yet."""

from torch.fx import GraphModule

KILLED_BY = "graph breaks"


def counting(counts):
    def backend(module, inputs):
        for part in module.modules() if not counts else ():
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
        return module.forward

    return backend
