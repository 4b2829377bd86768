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

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.compile.backend_mistakes import MISTAKES, truth
from autograder.exercises.places import counted

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
        f"{wrong!r} was counted {counted(got[wrong], 'time')}, too {'often' if got[wrong] > want[wrong] else 'few'}"
        if wrong
        else None
    )


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
    sizes = f"{counted(source.count(chr(10)), 'line')}, {counted(len(calls), 'call')}"
    return Call({"source": source, "calls": calls}, sizes)


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

BACKEND = Exercise(
    name="compile.backend",
    entry="counting",
    points=5,
    about="what a backend is given, and how often",
    point=("called again and again", "graph breaks"),
    kind="scenario",
    cases=CASES,
    oracle=truth,
    mistakes=MISTAKES,
    returns=("results", "counts"),
    accept=accept,
    launches=False,
    probe="autograder.inside.probes.backends:counted",
)
