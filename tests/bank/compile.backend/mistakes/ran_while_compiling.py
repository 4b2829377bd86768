"""Runs the graph at once and returns that result for ever."""

from torch.fx import GraphModule

KILLED_BY = "called again and again"


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
        result = module(*inputs)
        return lambda *args: result

    return backend
