"""rope.reference: the rotation in plain PyTorch, angles and all.

    rope_reference(x, offset, base, rotary_size, layout) -> y

x is (B, H, S, D) in fp32, fp16 or bf16, any strides; y is new, of the shape and type of x, and x stays as it is. The
first R = rotary_size elements of each head are turned (R even, at most D), the others are copied. Pair j, for j = 0 ..
R / 2 - 1, of row s is turned by the angle

    (offset + s) base^(-2 j / R)

`layout` says what pair j is: "halves" (x[j], x[j + R / 2]), "interleaved" (x[2 j], x[2 j + 1]). With the cosine and the
sine of its angle

    y0 = x0 cos - x1 sin        y1 = x1 cos + x0 sin

The offset may be negative, and lie beyond a million. So angles are made in float64, cosines and sines rounded to fp32,
products in fp32, and one rounding to the type of x.
"""

from autograder.exercise import Call, Case, Draw, Exercise, Precision
from autograder.exercises.dtypes import BF16, FP16, FP32
from autograder.exercises.rope.inputs import call_words
from autograder.exercises.rope.places import wrong_pairs
from autograder.exercises.rope.reference_mistakes import MISTAKES, with_tables
from autograder.exercises.rope.rotation import FLOOR_ULPS, LAYOUTS, ROUGH_IS, in_fp32, rough, turned
from autograder.exercises.strides import columns_apart, rows_apart

HALVES, INTERLEAVED = LAYOUTS


def _call(
    d: Draw,
    batch,
    heads,
    length,
    head_size,
    rotary=None,
    layout=HALVES,
    dtype=FP32,
    strides=None,
    offset=None,
    base=None,
) -> Call:
    shape = (batch, heads, length, head_size)
    args = {
        "x": d.normal(*shape, dtype=dtype, strides=strides(shape) if strides else None),
        "offset": d.integer(2, 25) if offset is None else offset,
        "base": base or round(d.number(50.0, 5000.0), 2),
        "rotary_size": rotary or head_size,
        "layout": layout,
    }
    return Call(args, f"{call_words(args['x'], args['x'], with_tables(args))}, base {args['base']:g}")


def _part(d: Draw, layout: str, head_size: int) -> Call:
    return _call(d, 2, 2, d.odd(9, 15), head_size, d.choice([8, 12, 20]), layout=layout)


CASES = (
    Case("one row", lambda d: _call(d, 1, 1, 1, 16)),
    Case("halves", lambda d: _call(d, 2, 3, d.odd(9, 15), 16, layout=HALVES)),
    Case("interleaved", lambda d: _call(d, 2, 3, d.odd(9, 15), 16, layout=INTERLEAVED)),
    Case("from position 0", lambda d: _call(d, 2, 3, d.odd(9, 15), 16, offset=0, layout=INTERLEAVED)),
    Case("a negative offset", lambda d: _call(d, 2, 2, d.odd(9, 15), 16, offset=-d.integer(20, 40))),
    Case(
        "pairs that are no power of two",
        lambda d: _call(d, 1, 2, d.odd(9, 15), d.choice([10, 36, 72]), layout=INTERLEAVED),
    ),
    Case("a part of the head", lambda d: _part(d, HALVES, 32)),
    Case("a part of the head, interleaved", lambda d: _part(d, INTERLEAVED, 28)),
    Case("a large base", lambda d: _call(d, 1, 2, d.odd(30, 49), 32, base=500000.0)),
    Case("many rows", lambda d: _call(d, 1, 2, d.odd(60, 79), 16, layout=INTERLEAVED)),
    Case("far positions", lambda d: _call(d, 1, 2, 16, 32, offset=d.integer(100_000, 2_000_000))),
    Case(
        "strided",
        lambda d: _call(d, 2, 3, d.odd(9, 15), 16, strides=d.choice([rows_apart, columns_apart]), layout=INTERLEAVED),
    ),
    Case("fp16", lambda d: _call(d, 2, 2, d.odd(40, 59), 16, dtype=FP16)),
    Case(
        "fp16, far positions",
        lambda d: _call(d, 1, 2, 16, 32, dtype=FP16, offset=d.integer(3000, 30_000), layout=INTERLEAVED),
    ),
    Case("bf16", lambda d: _call(d, 2, 2, d.odd(40, 59), 16, dtype=BF16, offset=d.integer(300, 600))),
)


REFERENCE = Exercise(
    name="rope.reference",
    entry="rope_reference",
    points=3,
    about="pairs that are turned by an angle which position and frequency set",
    point=("halves", "interleaved", "far positions"),
    kind="kernel",
    cases=CASES,
    returns=("y",),
    oracle=lambda v: {"y": turned(with_tables(v), v["x"])},
    precision=Precision(
        good=lambda v: {"y": in_fp32(with_tables(v, FP32), v["x"])},
        good_is="angles in float64, the rest in fp32",
        lower=lambda v: {"y": rough(with_tables(v, FP32), v["x"])},
        lower_is=ROUGH_IS,
        floor_ulps=FLOOR_ULPS,
    ),
    mistakes=MISTAKES,
    where=lambda output, wrong, args: wrong_pairs(output, wrong, with_tables(args)),
    launches=False,
)
