"""compile.backend: a backend of torch.compile that counts operators by kind and runs the graph.

    counting(counts) -> backend

`backend(module, inputs)` is what `torch.compile(f, backend=backend)` calls with a graph that Dynamo captured; it
returns what is then called in place of the module. It adds to the dict `counts`, once for each graph that it is given,
how many nodes of each kind the graph has.

The kind of a node is the name of what it calls: `__name__` of a function, the name of a method. So `torch.relu(x)`,
`F.relu(x)` and `x.relu()` are all "relu" and `x + y` is "add". Nodes that call nothing (placeholder, get_attr, output)
are not counted. Where an argument is a graph itself, as under `checkpoint`, the nodes of that graph count too, and so
does the call that holds it.

Right means: the program computes what it computes without a compiler, in every call, and `counts` is what Dynamo's
graphs hold. One program may come as several graphs.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import fx

from autograder.exercise import Call, Case, Draw, Exercise, Mistake
from course_lib.probes import backends
from course_lib.tracing.reuse import settings

LIMIT = 1e-4  # of the largest number: the same operators in the same order, on numbers of fp32

# -------------------------------------------------------------------------------------------- the comparison


def accept(got, want, args) -> str | None:
    return _results_wrong(got, want) if isinstance(want, list) else _counts_wrong(got, want)


def _results_wrong(got, want) -> str | None:
    if not isinstance(got, list | tuple) or len(got) != len(want):
        return "the program should return one tensor a call"
    for number, (here, true) in enumerate(zip(got, want, strict=True), 1):
        if not isinstance(here, list) or len(here) != len(true):
            return f"call {number} returned another number of values"
        size = max(map(abs, true), default=1.0)
        if any(not abs(g - w) <= LIMIT * size for g, w in zip(here, true, strict=True)):
            return f"call {number} of {len(want)} returned other values than the program without a compiler"
    return None


def _counts_wrong(got, want) -> str | None:
    if not isinstance(got, dict) or not all(isinstance(n, int) and not isinstance(n, bool) for n in got.values()):
        return "`counts` should hold a whole number for each kind"
    if strange := sorted(set(got) - set(want)):
        return f"`counts` has {strange[0]!r:.60}: no node of the graphs calls something of that name"
    if missing := sorted(set(want) - set(got)):
        return f"`counts` lacks {missing[0]!r:.60}"
    wrong = next((name for name in sorted(want) if got[name] != want[name]), None)
    return (
        f"{wrong!r} was counted {got[wrong]} times, too {'often' if got[wrong] > want[wrong] else 'few'}"
        if wrong
        else None
    )


# ------------------------------------------------------------------------------------------------ the truth


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
    return results, graphs


def _called(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_method")


def _kind(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else node.target.__name__


def _count(graphs, counted=_called, kind=_kind, inside=True) -> dict[str, int]:
    counts: dict[str, int] = {}
    modules = [m for g in graphs for m in (g.modules() if inside else [g]) if isinstance(m, fx.GraphModule)]
    for node in (node for module in modules for node in module.graph.nodes if counted(node)):
        counts[kind(node)] = counts.get(kind(node), 0) + 1
    return counts


def _oracle(v) -> dict:
    """The graphs run in `_collected` too; that they compute what the program does, a test says."""
    results, graphs = _collected(v)
    return {"results": results, "counts": _count(graphs)}


# ------------------------------------------------------------------------------------------------- the cases

STEPS = (
    "x = torch.relu(x)",
    "x = F.relu(x)",
    "x = x.relu()",
    "x = x @ w",
    "x = torch.matmul(x, w)",
    "x = x + w[0]",
    "x = torch.add(x, 1)",
    "x = x.mul(2)",
    "x = x * w.sum()",
    "x = x - x.mean()",
    "x = torch.softmax(x, -1)",
    "x = x.softmax(-1)",
    "x = F.gelu(x)",
    "x = x.t().t()",
    "x = torch.cat([x, x]).narrow(0, 0, x.shape[0])",
    "x = F.layer_norm(x, (4,))",
)


def _lines(d: Draw, low: int, high: int) -> list[str]:
    return [d.choice(STEPS) for _ in range(d.integer(low, high))]


def _source(lines: list[str], before: str = "") -> str:
    return before + "\n".join(["def f(x, w):", *(f"    {line}" for line in lines), "    return x", ""])


def _calls(d: Draw, rows: list[int], source: str) -> Call:
    calls = [{"rows": n, "seed": d.integer(0, 2**31)} for n in rows]
    return Call({"source": source, "calls": calls}, f"{source.count(chr(10))} lines, {len(calls)} calls")


def _straight(d: Draw) -> Call:
    return _calls(d, [3], _source(_lines(d, 3, 6)))


def _same_kind(d: Draw) -> Call:
    """One kind, three spellings."""
    return _calls(
        d, [3], _source(["x = torch.relu(x + 1)", "x = F.relu(x + 1)", "x = (x + 1).relu()"] * d.integer(1, 2))
    )


def _operators(d: Draw) -> Call:
    lines = ["x = x + 1", "x = torch.add(x, 1)", "x = x.add(1)", "x = 2 * x", "x = x.mul(2)", "x = x - w[1]"]
    return _calls(d, [3], _source([d.choice(lines) for _ in range(d.integer(4, 7))]))


def _called_again(d: Draw) -> Call:
    return _calls(d, [3] * d.integer(3, 5), _source(_lines(d, 3, 5)))


def _breaks(d: Draw) -> Call:
    lines = ["x = x.relu()", *_lines(d, 2, 4), "torch._dynamo.graph_break()", *_lines(d, 2, 4)]
    return _calls(d, [3, 3], _source([*lines, "torch._dynamo.graph_break()", "x = x.relu()"]))


def _sizes(d: Draw) -> Call:
    rows = d.rng.sample(range(2, 9), 3)
    return _calls(d, [*rows, rows[0]], _source(_lines(d, 3, 5)))


def _checkpointed(d: Draw) -> Call:
    inner = "\n".join(["def block(x, w):", *(f"    {line}" for line in _lines(d, 2, 4)), "    return x", "", ""])
    lines = ["x = checkpoint(block, x, w, use_reentrant=False)", *_lines(d, 1, 2)]
    return _calls(d, [3], _source(lines, inner))


def _two_blocks(d: Draw) -> Call:
    inner = "def block(x, w):\n    return (x @ w).relu() + 1\n\n\n"
    lines = ["x = checkpoint(block, x, w, use_reentrant=False)"] * 2
    return _calls(d, [3, 3], _source([*lines, *_lines(d, 1, 2)], inner))


CASES = (
    Case("a straight line", _straight),
    Case("one kind in three spellings", _same_kind),
    Case("operators of Python", _operators),
    Case("called again and again", _called_again),
    Case("graph breaks", _breaks),
    Case("other sizes", _sizes),
    Case("graphs inside of a graph", _checkpointed),
    Case("two graphs inside of a graph", _two_blocks),
    Case("another straight line", _straight),
    Case("more graph breaks", _breaks),
)

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
    return {"counts": counts} if counts != _oracle(v)["counts"] else {}


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
        "The backend ran the graph and returned its result: it has to return a function, which is called later, with "
        "other inputs.",
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
        answer=lambda v, kind: _counts(counted=lambda node: True, kind=kind)(v),
        variants=(lambda n: n.target if isinstance(n.target, str) else n.target.__name__, lambda n: n.name),
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

BACKEND = Exercise(
    name="compile.backend",
    entry="counting",
    points=5,
    kind="scenario",
    cases=CASES,
    oracle=_oracle,
    mistakes=MISTAKES,
    returns=("results", "counts"),
    accept=accept,
    launches=False,
    probe="course_lib.probes.backends:counted",
)
