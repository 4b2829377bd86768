"""rope.relative: the score of a query and a key that were turned, from their distance alone.

    relative_score(q, k, distance, base, layout) -> score

q and k are lists of R numbers (R even), as they were before they were turned. The query stands at some position m and
the key at position n, and distance is m - n; neither m nor n is known, and none is needed. `score` is the dot product
of the turned query and the turned key, both turned as in rope.reference with rotary_size R: pair j by the angle
position * base^(-2 j / R), where pair j is (x[j], x[j + R / 2]) for "halves", (x[2 j], x[2 j + 1]) for "interleaved".

Plain Python, `math` is enough. Right means: within 1e-9 of the truth, relative to the lengths of q and k.
"""

import math

import torch

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.rope.relative_mistakes import MISTAKES, score
from autograder.exercises.rope.rotation import LAYOUTS
from autograder.exercises.telling import telling

LIMIT = 1e-9
HALVES, INTERLEAVED = LAYOUTS


def _call(d: Draw, pairs=None, distance=None, layout=None, base=None) -> Call:
    pairs = pairs or d.integer(3, 8)
    args = {
        "q": [d.number(-2, 2) for _ in range(2 * pairs)],
        "k": [d.number(-2, 2) for _ in range(2 * pairs)],
        "distance": d.integer(3, 30) if distance is None else distance,
        "base": base or round(d.number(50, 5000), 2),
        "layout": layout or d.choice(LAYOUTS),
    }
    return Call(args, f"{2 * pairs} numbers, distance {args['distance']}, base {args['base']:g}, {args['layout']}")


CASES = (
    Case("one pair", lambda d: _call(d, pairs=1)),
    Case("halves", lambda d: _call(d, layout=HALVES)),
    Case("interleaved", lambda d: _call(d, layout=INTERLEAVED)),
    Case("the key comes later", lambda d: _call(d, distance=-d.integer(3, 30))),
    Case("neighbours", lambda d: _call(d, distance=d.choice([-1, 1]))),
    Case("a long head", lambda d: _call(d, pairs=64)),
    Case("far apart", lambda d: _call(d, distance=d.integer(5000, 90_000))),
    Case("a large base", lambda d: _call(d, base=500000.0, pairs=16)),
    Case("the same position", lambda d: _call(d, distance=0)),
)


def accept(got, want, args) -> str | None:
    if isinstance(got, bool) or not isinstance(got, (int, float)):
        return f"the score should be a number, got {type(got).__name__}"
    size = math.hypot(*args["q"]) * math.hypot(*args["k"])
    off = abs(got - want) / size
    return None if off <= LIMIT else f"the score is wrong: got {got:.6g}, off by {off:.1e} of |q| |k|, limit {LIMIT:g}"


def _frequencies_in_fp32(v) -> dict:
    half, base = len(v["q"]) // 2, v["base"]
    frequencies = (base ** (-torch.arange(half) / half)).tolist()
    return {"score": score(v, exponent=lambda j, size: math.log(frequencies[j]) / math.log(base))}


# which layout it is, and whether fp32 is seen
SHOWN = (
    *(lambda v, layout=layout: {"score": score(v, layout=layout)} for layout in LAYOUTS),
    _frequencies_in_fp32,
)


RELATIVE = Exercise(
    name="rope.relative",
    entry="relative_score",
    points=2,
    about="a score that depends on the distance only",
    point=("halves", "the key comes later"),
    kind="scenario",
    cases=telling(CASES, lambda v: {"score": score(v)}, MISTAKES, accept, also=SHOWN),
    oracle=lambda v: {"score": score(v)},
    mistakes=MISTAKES,
    returns=("score",),
    accept=accept,
    launches=False,
)
