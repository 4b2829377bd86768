"""Counts in what is called."""

from torch.fx import GraphModule

KILLED_BY = "called again and again"


def counting(counts):
    def backend(module, inputs):
        def run(*args):
            for part in module.modules():
                for node in part.graph.nodes if isinstance(part, GraphModule) else ():
                    if node.op in ("call_function", "call_method"):
                        kind = getattr(node.target, "__name__", node.target)
                        counts[kind] = counts.get(kind, 0) + 1
            return module(*args)

        return run

    return backend
