"""A set of kinds."""

from torch.fx import GraphModule

KILLED_BY = "one kind in three spellings"


def counting(counts):
    def backend(module, inputs):
        graphs = [part.graph for part in module.modules() if isinstance(part, GraphModule)]
        nodes = [node for graph in graphs for node in graph.nodes if node.op in ("call_function", "call_method")]
        for kind in {getattr(node.target, "__name__", node.target) for node in nodes}:
            counts[kind] = counts.get(kind, 0) + 1
        return module.forward

    return backend
