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

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from autograder.exercise import Call, Case, Draw, Exercise, Values
from autograder.exercises.compile.guards_mistakes import MISTAKES, truth
from autograder.exercises.recorded import judged_here
from autograder.exercises.telling import telling
from course_lib.torch_inside.reuse import compiles

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
            told = "said to compile, and torch does not" if said else "said not to compile, and torch does"
            before = f" after {'; '.join(map(_short, args['calls'][: number - 1]))}" if number > 1 else ""
            return f"call {number} of {len(want)}, {_short(call)},{before}: {told}"
    return None


def _short(call: Mapping) -> str:
    return f"{call['shape']} {call['dtype']}{' needs_grad' if call['needs_grad'] else ''}"


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


def _told_apart(d: Draw, draw: Callable[[Draw], Call], misjudged: Sequence[type]) -> Call:
    """Drawn again until the truth differs from the answer of each of these misjudgements.

    Nothing else of a case is fixed: of calls in a fixed order, the right answers could be written down at home.
    """
    while True:
        call = draw(d)
        if len({_said(rule, call.args) for rule in (truth.Rule, *misjudged)}) == 1 + len(misjudged):
            return call


def _said(rule: type, v: Values) -> tuple[bool, ...]:
    return tuple(rule(v["dynamic"], v["marked"], v["limit"]).compiles(v["calls"]))


def _some(d: Draw, options: Sequence, count: int) -> list:
    return [d.choice(options) for _ in range(count)]


def _shapes(d: Draw, rows: Sequence[int], columns: Sequence[int], low=6, high=8) -> list[tuple[int, int]]:
    count = d.integer(low, high)
    return list(zip(_some(d, rows, count), _some(d, columns, count), strict=True))


def _one_grows(d: Draw) -> Call:
    """Now and then the other one does, too."""
    n, m, *rows = _sizes(d, 6)
    return _call(_shapes(d, rows, [n] * 7 + [m]))


def _other_follows(d: Draw, **options) -> Call:
    return _call(_shapes(d, _sizes(d, 3), _sizes(d, 3)), **options)


def _squares(d: Draw, **options) -> Call:
    """Half of the shapes are squares, the first one too."""
    sizes = _sizes(d, 4)
    shapes = [(r, r) if d.integer(0, 1) else (r, c) for r, c in _shapes(d, sizes, sizes)]
    return _call([(sizes[0], sizes[0]), *shapes], **options)


def _zero_and_one(d: Draw, **options) -> Call:
    n, m, a, b, c = _sizes(d, 5)
    return _call(_shapes(d, [0, 0, 1, 1, a, b, c], [n] * 6 + [m], 7, 9), **options)


def _small_first(d: Draw, **options) -> Call:
    n, m, *rows = _sizes(d, 5)
    return _call([(d.integer(0, 1), n), *_shapes(d, [0, 1, *rows, *rows], [n] * 4 + [m], 4, 6)], **options)


def _two_types(d: Draw, **options) -> Call:
    n, *rows = _sizes(d, 4)
    shapes = _shapes(d, rows, [n])
    return _call(shapes, dtypes=_some(d, ("float32", "float64"), len(shapes)), **options)


def _squares_of_two_types(d: Draw, **options) -> Call:
    """Squares of a few sizes, so that one type meets other squares than the other, and then something else."""
    sizes = _sizes(d, 2)
    shapes = [(size, size) for size in _some(d, sizes, d.integer(4, 6))]
    shapes += _shapes(d, sizes, sizes, 3, 4)
    return _call(shapes, dtypes=_some(d, ("float32", "float64"), len(shapes)), **options)


def _gradients(d: Draw) -> Call:
    n, *rows = _sizes(d, 4)
    shapes = _shapes(d, rows, [n])
    return _call(shapes, grads=_some(d, (False, True), len(shapes)))


def _marked(d: Draw, **options) -> Call:
    return _other_follows(d, marked=[d.integer(0, 1)], **options)


def _past_the_limit(d: Draw) -> Call:
    """Each size is used once or twice, in any order."""
    limit = d.integer(3, 8)
    n, *rows = _sizes(d, limit + 4)
    rows += _some(d, rows, 4)
    d.rng.shuffle(rows)
    return _call([(r, n) for r in rows], dynamic=False, limit=limit)


def _mixture(d: Draw) -> Call:
    few = d.rng.sample(range(2, 12), 3)
    sizes = d.choice([[0, 1, *few], few, [1, *few, *few]])
    shapes = _shapes(d, sizes, sizes, 8, 12)
    return _call(
        shapes,
        dynamic=d.choice((None, True, False)),
        marked=d.choice(([], [], [0], [1], [0, 1])),
        limit=d.choice((3, 5, 8)),
        dtypes=_some(d, ("float32", "float32", "float64"), len(shapes)),
        grads=[d.number(0, 1) < 0.2 for _ in shapes],
    )


def _case(name: str, draw: Callable[..., Call], *misjudged: type, **options) -> Case:
    return Case(name, partial(_told_apart, draw=partial(draw, **options), misjudged=misjudged))


SMALL = (truth.OnlyOneSpecial, truth.OnlyZeroSpecial, truth.NothingSpecial)
CASES = (
    _case("one dimension grows", _one_grows, truth.StaticUnlessAsked, truth.DynamicAtOnce),
    _case("the other dimension follows", _other_follows, truth.WholeShape),
    _case("squares", _squares, truth.DynamicFromTheThird),
    _case("dynamic=True", _other_follows, truth.AlwaysStatic, dynamic=True),
    _case("dynamic=True, squares first", _squares, truth.NeverTied, dynamic=True),
    _case("dynamic=True, squares of two types", _squares_of_two_types, truth.LearnsFromEveryCall, dynamic=True),
    _case("dynamic=False", _other_follows, truth.OnlyTheLast, dynamic=False),
    _case("sizes 0 and 1", _zero_and_one, *SMALL, truth.DynamicAtOnce),
    _case("sizes 0 and 1, dynamic=True", _zero_and_one, *SMALL, dynamic=True),
    _case("0 or 1 first", _small_first, truth.NothingSpecial),
    _case("two types", _two_types, truth.TypesAlike, truth.LearntByType),
    _case("with and without gradients", _gradients, truth.GradientsAlike),
    _case("a marked dimension", _marked, truth.MarksForgotten, truth.WholeShapeMarked),
    _case("a marked dimension, dynamic=False", _marked, truth.FalseWins, dynamic=False),
    _case("a marked dimension, 0 or 1 first", _small_first, truth.NothingSpecial, marked=[0]),
    _case("both marked, squares first", _squares, truth.AlwaysTied, truth.MarksForgotten, marked=[0, 1]),
    _case("more sizes than the limit", _past_the_limit, truth.Unlimited, truth.LimitOffByOne, truth.OldestThrownAway),
    _case("the limit and two types", _two_types, truth.LimitOfEachType, truth.LimitOffByOne, dynamic=False, limit=3),
    _case("a mixture", _mixture),
    _case("another mixture", _mixture),
)


def _by_rule(v) -> dict:
    """What torch would say, by the rule: draws are compared with it, as torch takes half a second for each."""
    return {"compiles": list(_said(truth.Rule, v))}


GUARDS = Exercise(
    name="compile.guards",
    entry="compiles",
    points=8,
    about="what is compiled again, and what the compiler learns from it",
    point=("one dimension grows", "a marked dimension", "more sizes than the limit"),
    kind="scenario",
    cases=telling(CASES, _by_rule, MISTAKES, accept),
    oracle=lambda v: {"compiles": compiles(v["calls"], v["dynamic"], v["marked"], v["limit"])},
    mistakes=MISTAKES,
    returns=("compiles",),
    accept=accept,
    launches=False,
    hides=("torch._dynamo",),
)
GUARDS = judged_here(GUARDS, truth)
