"""The outermost graph only."""

from collections import Counter

KILLED_BY = "graphs inside of a graph"


def counting(counts):
    def backend(module, inputs):
        kinds = Counter(
            node.target if node.op == "call_method" else node.target.__name__
            for node in module.graph.nodes
            if node.op.startswith("call")
        )
        for kind, count in kinds.items():
            counts[kind] = counts.get(kind, 0) + count
        return module

    return backend
