"""compile.guards: a rule that says which calls of a compiled function compile.

    compiles(calls, dynamic, marked, limit) -> [True, False, ...]

The function is `f(x) = x.sin() * 2`, compiled once, by `torch.compile(f, dynamic=dynamic)`. `calls`: one dict a call,
in order, of the tensor that is passed: `shape`, [rows, columns], contiguous; `dtype`, "float32" or "float64";
`needs_grad`. `dynamic`: None, True or False. `marked`: the dimensions, [], [0], [1] or [0, 1], of every tensor that
were given to `mark_dynamic` before the call. `limit`: `recompile_limit`, how many compilations the function may have.

Asked for: one entry a call, True where torch compiles for it, False where it uses what was compiled before or, past the
limit, runs the function without compiling.

The truth is what torch does when the answer is judged, on calls drawn at random. The rule itself has no compiler: for
the referee it runs where `torch._dynamo` is an empty folder.
"""

from __future__ import annotations

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.compile.guards_mistakes import MISTAKES
from course_lib.tracing.reuse import compiles

# -------------------------------------------------------------------------------------------- the comparison


def accept(got, want, args) -> str | None:
    if not isinstance(got, list | tuple):
        return f"`compiles` should return a list with True or False for each call, got {type(got).__name__}"
    if len(got) != len(want):
        return f"the list has {len(got)} entries for {len(want)} calls"
    for number, (said, true, call) in enumerate(zip(got, want, args["calls"], strict=True), 1):
        if not isinstance(said, bool | int) or said not in (0, 1):
            return f"entry {number} should be True or False, got {said!r:.40}"
        if bool(said) != true:
            told = "as one that compiles" if said else "as one that does not compile"
            kind = f"{call['dtype']}{', needs a gradient' if call['needs_grad'] else ''}"
            return f"call {number} of {len(want)}, {call['shape']} {kind}, was told {told}"
    return None


# ------------------------------------------------------------------------------------------------- the cases


def _call(shapes, dynamic=None, marked=(), limit=8, dtypes=(), grads=()) -> Call:
    """One situation; types are float32 and no gradients are needed where the lists end."""
    calls = [{"shape": list(shape), "dtype": "float32", "needs_grad": False} for shape in shapes]
    for call, dtype in zip(calls, dtypes, strict=False):
        call["dtype"] = dtype
    for call, needs in zip(calls, grads, strict=False):
        call["needs_grad"] = needs
    args = {"calls": calls, "dynamic": dynamic, "marked": list(marked), "limit": limit}
    marks = f", marked {list(marked)}" if marked else ""
    return Call(args, f"{len(calls)} calls, dynamic={dynamic}{marks}, limit {limit}")


def _sizes(d: Draw, count: int) -> list[int]:
    """Different sizes, none of them 0 or 1."""
    return d.rng.sample(range(2, 30), count)


def _one_grows(d: Draw) -> Call:
    n, a, b, c, e = _sizes(d, 5)
    return _call([(a, n), (b, n), (c, n), (a, n), (e, n)])


def _other_follows(d: Draw) -> Call:
    m, n, o, a, b, c, e = _sizes(d, 7)
    return _call([(a, m), (b, m), (c, n), (e, o), (b, n)])


def _squares(d: Draw, **options) -> Call:
    a, b, c, e, f = _sizes(d, 5)
    return _call([(a, a), (b, b), (c, e), (f, f), (a, c)], **options)


def _rectangles_at_once(d: Draw) -> Call:
    a, b, c, e, f, g = _sizes(d, 6)
    return _call([(a, b), (c, e), (f, f), (b, g)], dynamic=True)


def _zero_and_one(d: Draw, dynamic=None) -> Call:
    n, a, b, c = _sizes(d, 4)
    rows = [a, b, 1, c, 0, 1, 0] if d.integer(0, 1) else [a, b, 0, c, 1, 0, 1]
    return _call([(r, n) for r in rows], dynamic=dynamic)


def _one_first(d: Draw) -> Call:
    n, a, b, c = _sizes(d, 4)
    return _call([(d.choice((0, 1)), n), (a, n), (b, n), (1, n), (c, n)])


def _two_types(d: Draw) -> Call:
    n, a, b, c, e, f = _sizes(d, 6)
    rows = [(a, n), (b, n), (c, n), (e, n), (f, n), (a, n)]
    return _call(rows, dtypes=["float32", "float32", "float64", "float64", "float32", "float64"])


def _gradients(d: Draw) -> Call:
    n, a, b, c, e = _sizes(d, 5)
    rows = [(a, n), (a, n), (b, n), (c, n), (e, n)]
    return _call(rows, grads=[False, True, False, True, True])


def _marked_rows(d: Draw, dynamic=None) -> Call:
    m, n, o, a, b, c, e, f = _sizes(d, 8)
    side = d.integer(0, 1)  # the marked dimension
    shapes = [(a, m), (b, m), (c, n), (e, n), (f, o), (a, o)]
    return _call([s if side == 0 else s[::-1] for s in shapes], dynamic=dynamic, marked=[side])


def _marked_one_first(d: Draw) -> Call:
    n, a, b, c = _sizes(d, 4)
    return _call([(1, n), (a, n), (b, n), (0, n), (c, n)], marked=[0])


def _never_dynamic(d: Draw) -> Call:
    m, n, a, b = _sizes(d, 4)
    return _call([(a, m), (b, m), (a, n), (b, m), (b, n), (a, m)], dynamic=False)


def _past_the_limit(d: Draw) -> Call:
    limit = d.integer(3, 8)
    n, new, *rows = _sizes(d, limit + 4)
    back = [rows[0], new, rows[-1], rows[limit - 1]]
    return _call([(r, n) for r in (*rows, *back)], dynamic=False, limit=limit)


def _limit_of_all_types(d: Draw) -> Call:
    n, a, b, c, e = _sizes(d, 5)
    rows = [(a, n), (a, n), (b, n), (b, n), (c, n), (a, n), (e, n)]
    types = ["float32", "float64", "float32", "float64", "float64", "float32", "float32"]
    return _call(rows, dynamic=False, limit=3, dtypes=types)


def _mixture(d: Draw) -> Call:
    few = d.rng.sample(range(2, 12), 3)
    sizes = d.choice([[0, 1, *few], few, [1, *few, *few]])
    count = d.integer(8, 12)
    shapes = [(d.choice(sizes), d.choice(sizes)) for _ in range(count)]
    return _call(
        shapes,
        dynamic=d.choice((None, True, False)),
        marked=d.choice(([], [], [0], [1], [0, 1])),
        limit=d.choice((3, 5, 8)),
        dtypes=[d.choice(("float32", "float32", "float64")) for _ in shapes],
        grads=[d.number(0, 1) < 0.2 for _ in shapes],
    )


CASES = (
    Case("one dimension grows", _one_grows),
    Case("the other dimension follows", _other_follows),
    Case("squares", _squares),
    Case("dynamic=True", _rectangles_at_once),
    Case("dynamic=True, squares first", lambda d: _squares(d, dynamic=True)),
    Case("dynamic=False", _never_dynamic),
    Case("sizes 0 and 1", _zero_and_one),
    Case("sizes 0 and 1, dynamic=True", lambda d: _zero_and_one(d, dynamic=True)),
    Case("0 or 1 first", _one_first),
    Case("two types", _two_types),
    Case("with and without gradients", _gradients),
    Case("a marked dimension", _marked_rows),
    Case("a marked dimension, dynamic=False", lambda d: _marked_rows(d, dynamic=False)),
    Case("a marked dimension, 1 first", _marked_one_first),
    Case("both marked, squares first", lambda d: _squares(d, marked=[0, 1])),
    Case("more sizes than the limit", _past_the_limit),
    Case("the limit and two types", _limit_of_all_types),
    Case("a mixture", _mixture),
    Case("another mixture", _mixture),
)

GUARDS = Exercise(
    name="compile.guards",
    entry="compiles",
    points=8,
    kind="scenario",
    cases=CASES,
    oracle=lambda v: {"compiles": compiles(v["calls"], v["dynamic"], v["marked"], v["limit"])},
    mistakes=MISTAKES,
    returns=("compiles",),
    accept=accept,
    launches=False,
    hides=("torch._dynamo",),
)
