"""flash.merge: two softmaxes over parts of a row, made into the softmax over both.

    merge(a, b) -> merged

A state is a dict of three entries and stands for some keys of one row:

    m   the largest score, a number; -inf when the part holds no key
    l   the sum of exp(score - m), a number; 0 when the part holds no key
    o   the sum of exp(score - m) * value, a list with one number a column: the accumulator, not yet divided by l

`merged` is the state of both parts together: the same three entries, as if all keys had come at once. A part with no
key changes nothing, and two of them give m = -inf, l = 0 and zeros, without NaN. Scores reach from -1e4 to 1e4. Plain
Python: numbers and lists, `math` is enough.

Right means: within 1e-9 of the truth, relative to the larger of a number and what it was summed from.
"""

import math

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.flash.merge_mistakes import MISTAKES, merged
from autograder.exercises.telling import telling

EMPTY = -math.inf
LIMIT = 1e-9


def _state(draw: Draw, columns: int, keys: int, centre: float) -> dict:
    """The state of `keys` keys whose scores lie around `centre`."""
    scores = [draw.number(centre - 2, centre + 2) for _ in range(keys)]
    m = max(scores, default=EMPTY)
    weights = [math.exp(s - m) for s in scores]
    values = [[draw.number(-3, 3) for _ in range(columns)] for _ in scores]
    o = [sum(w * row[c] for w, row in zip(weights, values, strict=True)) for c in range(columns)]
    return {"m": m, "l": math.fsum(weights), "o": o}


def _call(draw: Draw, first=(0.0, None), second=(0.0, None), columns=None) -> Call:
    """`first`, `second`: (centre of the scores, number of keys or None for some)."""
    columns = columns or draw.integer(3, 7)
    counts = [draw.integer(2, 9) if keys is None else keys for _, keys in (first, second)]
    a, b = (_state(draw, columns, n, centre) for n, (centre, _) in zip(counts, (first, second), strict=True))
    return Call({"a": a, "b": b}, f"{counts[0]} and {counts[1]} keys, {columns} columns")


NONE = (0.0, 0)
CASES = (
    Case("larger scores in the second part", lambda d: _call(d, (0.0, None), (d.number(4.5, 9), None))),
    Case("larger scores in the first part", lambda d: _call(d, (d.number(4.5, 9), None), (0.0, None))),
    Case("scores below zero", lambda d: _call(d, (d.number(-9, -6), None), (d.number(-13, -11), None))),
    Case("close maxima", _call),
    Case("one key each", lambda d: _call(d, (0.0, 1), (d.number(-3, 3), 1))),
    Case("one column", lambda d: _call(d, (0.0, None), (d.number(-6, 6), None), columns=1)),
    Case("many columns", lambda d: _call(d, (2.0, None), (d.number(-4, -3), None), columns=64)),
    Case("scores past 1000", lambda d: _call(d, (d.number(2000, 9000), None), (d.number(1000, 1990), None))),
    Case("large scores, close together", lambda d: _call(d, (9000.0, None), (9000.0 + d.number(1, 4), None))),
    Case("very negative scores", lambda d: _call(d, (-9000.0, None), (-9000.0 - d.number(1, 4), None))),
    Case("scores far apart", lambda d: _call(d, (d.number(-9000, -5000), None), (d.number(5000, 9000), None))),
    Case("no key in the first part", lambda d: _call(d, NONE, (d.number(-5, 5), None))),
    Case("no key in the second part", lambda d: _call(d, (d.number(-5, 5), None), NONE)),
    Case("no key in either", lambda d: _call(d, NONE, NONE)),
)


def accept(got, want, args) -> str | None:
    if not isinstance(got, dict) or set(got) != {"m", "l", "o"}:
        return "`merge` should return a dict with the entries m, l and o"
    columns = len(want["o"])
    if not isinstance(got["o"], (list, tuple)) or len(got["o"]) != columns:
        return "o should be a list with one number a column, as many as `a['o']` has"
    sizes = {"m": 1.0, "l": abs(want["l"])}
    for name in ("m", "l"):
        if why := _off(got[name], want[name], sizes[name], name):
            return why
    largest = max([abs(x) for x in (*args["a"]["o"], *args["b"]["o"])], default=0.0)
    found = (_off(x, y, largest, f"o[{i}]") for i, (x, y) in enumerate(zip(got["o"], want["o"], strict=True)))
    return next(filter(None, found), None)


def _off(got, want, size: float, name: str) -> str | None:
    if isinstance(got, bool) or not isinstance(got, (int, float)):
        return f"{name} should be a number, got {type(got).__name__}"
    if math.isnan(got) and not math.isnan(want):
        return f"{name} is NaN"
    near = not math.isinf(want) and abs(got - want) <= LIMIT * max(abs(want), size)  # to -inf nothing is near
    if got == want or math.isnan(want) or near:
        return None if math.isnan(got) == math.isnan(want) else f"{name} is wrong: got {got:.6g}"
    return f"{name} is wrong: got {got:.6g}"


# which part holds the larger score
SHOWN = tuple(lambda v, part=part: {"merged": {**merged(v), "m": v[part]["m"]}} for part in "ab")

MERGE = Exercise(
    name="flash.merge",
    entry="merge",
    points=3,
    about="parts of a softmax brought to one maximum",
    point=("larger scores in the second part", "larger scores in the first part"),
    kind="scenario",
    cases=telling(CASES, lambda v: {"merged": merged(v)}, MISTAKES, accept, also=SHOWN),
    oracle=lambda v: {"merged": merged(v)},
    mistakes=MISTAKES,
    returns=("merged",),
    accept=accept,
    launches=False,
)
