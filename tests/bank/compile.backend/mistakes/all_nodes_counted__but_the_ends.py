"""Every node between the inputs and the output, also those that fetch an attribute."""

from torch.fx import GraphModule

KILLED_BY = "graphs inside of a graph"


def counting(counts):
    def backend(module, inputs):
        for part in module.modules():
            if not isinstance(part, GraphModule):
                continue
            for node in part.graph.nodes:
                if node.op in ("placeholder", "output"):
                    continue
                kind = getattr(node.target, "__name__", node.target)
                counts[kind] = counts.get(kind, 0) + 1
        return module.forward

    return backend
