"""counts.update with the counts of this graph."""

from collections import Counter

from torch.fx import GraphModule

KILLED_BY = "graph breaks"


def counting(counts):
    def backend(module, inputs):
        graphs = [part.graph for part in module.modules() if isinstance(part, GraphModule)]
        nodes = [node for graph in graphs for node in graph.nodes if node.op in ("call_function", "call_method")]
        counts.update(Counter(getattr(node.target, "__name__", node.target) for node in nodes))
        return module.forward

    return backend
