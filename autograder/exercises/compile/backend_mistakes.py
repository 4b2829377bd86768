"""What Dynamo's graphs hold, and how people count something else."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import fx

from autograder.exercise import Mistake
from autograder.inside.probes import backends
from course_lib.torch_inside.reuse import settings


def _collected(v) -> tuple[list[list[float]], list[fx.GraphModule]]:
    """What the program computes, and every graph that Dynamo makes of it."""
    return _captured(v["source"], tuple((call["rows"], call["seed"]) for call in v["calls"]))


@lru_cache(maxsize=64)  # every known mistake asks, and capturing takes a tenth of a second
def _captured(source: str, calls: tuple) -> tuple[list[list[float]], list[fx.GraphModule]]:
    graphs: list[fx.GraphModule] = []

    def backend(module, inputs):
        graphs.append(module)
        return module.forward

    with settings(recompile_limit=8):
        compiled = torch.compile(backends.program(source), backend=backend)
        given = [backends.inputs({"rows": rows, "seed": seed}) for rows, seed in calls]
        results = [compiled(*tensors).reshape(-1).tolist() for tensors in given]
    if not graphs:
        raise RuntimeError("expected graphs of the program, and torch captured none")
    return results, graphs


def _called(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_method")


def _kind(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else node.target.__name__


def _any(node: fx.Node) -> bool:
    return True


def _in_the_middle(node: fx.Node) -> bool:
    return node.op not in ("placeholder", "output")


def _count(graphs, counted=_called, kind=_kind, inside=True) -> dict[str, int]:
    counts: dict[str, int] = {}
    modules = [m for g in graphs for m in (g.modules() if inside else [g]) if isinstance(m, fx.GraphModule)]
    for node in (node for module in modules for node in module.graph.nodes if counted(node)):
        counts[kind(node)] = counts.get(kind(node), 0) + 1
    return counts


def truth(v) -> dict:
    """The graphs run in `_collected` too; that they compute what the program does, a test says."""
    results, graphs = _collected(v)
    return {"results": results, "counts": _count(graphs)}


# ---------------------------------------------------------------------------------------------- the mistakes


def _counts(**options):
    """The counts of another way to count, where they are other ones."""

    def answer(v):
        graphs = _collected(v)[1]
        counts = _count(graphs, **options)
        return {"counts": counts} if counts != _count(graphs) else {}

    return answer


def _at_every_call(v) -> dict:
    """Each graph counts whenever it runs."""
    counts: dict[str, int] = {}

    def backend(module, inputs):
        def run(*args):
            for name, count in _count([module]).items():
                counts[name] = counts.get(name, 0) + count
            return module.forward(*args)

        return run

    with settings(recompile_limit=8):
        compiled = torch.compile(backends.program(v["source"]), backend=backend)
        for call in v["calls"]:
            compiled(*backends.inputs(call))
    return {"counts": counts} if counts != truth(v)["counts"] else {}


def _last_graph_wins(v) -> dict:
    graphs, counts = _collected(v)[1], {}
    for graph in graphs:
        counts |= _count([graph])
    return {"counts": counts} if counts != _count(graphs) else {}


def _only_the_last_graph(v) -> dict:
    graphs = _collected(v)[1]
    return {"counts": _count(graphs[-1:])} if len(graphs) > 1 else {}


def _only_the_first_graph(v) -> dict:
    graphs = _collected(v)[1]
    return {"counts": _count(graphs[:1])} if len(graphs) > 1 else {}


def _once_a_graph(v) -> dict:
    graphs, counts = _collected(v)[1], {}
    for graph in graphs:
        for name in _count([graph]):
            counts[name] = counts.get(name, 0) + 1
    return {"counts": counts} if counts != _count(graphs) else {}


def _counts_differ(e) -> bool:
    return any(t.outcome.outputs["counts"] != t.want["counts"] for t in e.failing if t.outcome.error is None)


def _fewer_values(e) -> bool:
    """The first row of the result came in its place, already in the plainest case."""
    for t in e.tried:
        if t.case.name == "a straight line" and t.outcome.error is None:
            pairs = zip(t.outcome.outputs["results"], t.want["results"], strict=False)
            return any(len(here) < len(true) and here == true[: len(here)] for here, true in pairs)
    return False


def _first_results_again(e) -> bool:
    """Wrong only where a graph runs a second time, and wrong in what it returns."""
    again = [t for t in e.failing if t.case.name == "called again and again" and t.outcome.error is None]
    return e.passed("a straight line") and any(t.outcome.outputs["counts"] == t.want["counts"] for t in again)


MISTAKES = (
    Mistake(
        "not_a_tuple_returned",
        "What the backend returns is called in place of the graph and has to return a tuple, as the graph does. Return "
        "the module, or its `forward`.",
        sign=lambda e: not _counts_differ(e) and (e.raised("invalid index of a 0-dim") or _fewer_values(e)),
    ),
    Mistake(
        "result_returned",
        "What the backend returned cannot be called: it is nothing, or what the graph gave when the backend ran it. "
        "Return a function, such as `module.forward`, which is called later, with other inputs.",
        sign=lambda e: e.raised("did not return callable"),
    ),
    Mistake(
        "ran_while_compiling",
        "The graph was run once, while it was compiled, and that result is returned in every call. Return something "
        "that runs the graph with the inputs it gets.",
        sign=_first_results_again,
    ),
    Mistake(
        "counted_at_every_call",
        "Nodes are counted whenever the graph runs. Count when the backend is called: once for each graph.",
        answer=_at_every_call,
    ),
    Mistake(
        "all_nodes_counted",
        "Placeholders, attributes or outputs were counted: they call nothing.",
        answer=lambda v, ways: _counts(counted=ways[0], kind=ways[1])(v),
        variants=((_any, _kind), (_any, lambda n: n.name), (_in_the_middle, _kind)),
    ),
    Mistake(
        "kinds_of_nodes_counted",
        "These are the kinds of nodes (`node.op`): asked for is the name of what is called (`node.target`).",
        answer=lambda v, counted: _counts(counted=counted, kind=lambda node: node.op)(v),
        variants=(_called, lambda node: True),
    ),
    Mistake(
        "names_of_nodes_counted",
        "These are names of nodes (`node.name`), each there once: asked for is the name of what is called.",
        answer=_counts(kind=lambda node: node.name),
    ),
    Mistake(
        "targets_printed",
        "A function was counted under its printed form. Its name is `__name__`.",
        answer=lambda v, kind: _counts(kind=kind)(v),
        variants=(lambda n: str(n.target), lambda n: n._pretty_print_target(n.target)),
    ),
    Mistake(
        "methods_missed",
        "Only calls of functions were counted: `x.relu()` is a node of another kind, call_method, and its target is a "
        "string.",
        answer=_counts(counted=lambda node: node.op == "call_function"),
    ),
    Mistake(
        "graphs_inside_missed",
        "A graph may hold other graphs, as arguments of a call: walk over `module.modules()`.",
        answer=_counts(inside=False),
    ),
    Mistake(
        "once_a_graph",
        "Every kind was counted once a graph, however often it occurs.",
        answer=_once_a_graph,
    ),
    Mistake(
        "assigned_not_added",
        "A later graph took the place of an earlier one in `counts`: add to what is there.",
        answer=lambda v, rule: rule(v),
        variants=(_last_graph_wins, _only_the_last_graph),
    ),
    Mistake(
        "only_the_first_graph",
        "Only the first graph was counted: after a graph break, and for another size, there is another one.",
        answer=_only_the_first_graph,
    ),
)
