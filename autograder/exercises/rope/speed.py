"""rope.speed: queries and keys turned at the speed of a copy.

    rope_into(q, k, cos, sin, layout, q_out, k_out)

As rope.forward, but q and k stay as they are, the results lie in q_out and k_out, and row s is at position s. q_out is
like q and k_out like k, each with strides of its own; what is not turned is copied. The outputs hold NaN before the
call. The tables hold at least S positions. A kernel that is given an input and an output turns in place when both are
the same tensor; here they are two, so that the clock can look at every call's answer. The bytes are the same.

The floor counts one read of q and k and one write of q_out and k_out, at the rate of this device's copy.
"""

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Precision, Speed
from autograder.exercises.dtypes import BF16, FP16, FP32
from autograder.exercises.rope.inputs import call_words, tables, with_gap
from autograder.exercises.rope.places import wrong_pairs
from autograder.exercises.rope.rotation import FLOOR_ULPS, LAYOUTS, ROUGH_IS, in_fp32, rough, turned
from autograder.exercises.rope.speed_mistakes import MISTAKES, both
from autograder.exercises.strides import columns_apart, rows_apart

HALVES, INTERLEAVED = LAYOUTS


def _call(
    d: Draw, batch, heads, length, head_size, rotary=None, layout=HALVES, dtype=FP32, strides=None, out_strides=None
) -> Call:
    """heads: of q and of k; strides: functions of a shape."""
    heads, kv_heads = heads if isinstance(heads, tuple) else (heads, heads)
    q, k = (batch, heads, length, head_size), (batch, kv_heads, length, head_size)
    args = {
        name: d.normal(*shape, dtype=dtype, strides=strides and strides(shape)) for name, shape in zip("qk", (q, k))
    }
    args |= tables(d, rotary or head_size, length + d.integer(1, 4)) | {"layout": layout}
    for name, shape in (("q_out", q), ("k_out", k)):
        args[name] = d.empty(*shape, dtype=dtype, strides=out_strides and out_strides(shape))
    return Call(args, call_words(args["q"], args["k"], args))


CASES = (
    Case("whole blocks", lambda d: _call(d, 1, 2, 16, 32)),
    Case("halves", lambda d: _call(d, 2, 2, d.odd(17, 23), 16, layout=HALVES)),
    Case("interleaved", lambda d: _call(d, 2, 2, d.odd(17, 23), 16, layout=INTERLEAVED)),
    Case("head size 72", lambda d: _call(d, 1, 2, d.odd(9, 15), 72, layout=INTERLEAVED)),
    Case("a part of the head", lambda d: _call(d, 1, 2, d.odd(9, 15), 48, 24, layout=HALVES)),
    Case(
        "a part of the head, interleaved",
        lambda d: _call(d, 1, 2, d.odd(9, 15), 40, 24, layout=INTERLEAVED),
    ),
    Case("fewer heads of keys", lambda d: _call(d, 2, (6, 2), d.odd(9, 15), 16)),
    Case("many rows", lambda d: _call(d, 1, 1, d.odd(67, 79), 16, layout=INTERLEAVED)),
    Case(
        "heads side by side",
        lambda d: _call(d, 2, (4, 2), d.odd(9, 15), 16, strides=rows_apart, out_strides=rows_apart),
    ),
    Case("strided inputs", lambda d: _call(d, 2, (4, 2), d.odd(9, 15), 16, strides=with_gap(24), layout=INTERLEAVED)),
    Case("strided outputs", lambda d: _call(d, 2, (4, 2), d.odd(9, 15), 16, out_strides=with_gap(24))),
    Case("elements apart", lambda d: _call(d, 1, 2, d.odd(9, 15), 16, strides=columns_apart, layout=INTERLEAVED)),
    Case("fp16", lambda d: _call(d, 2, (4, 2), d.odd(17, 27), 40, dtype=FP16, strides=rows_apart)),
    Case(
        "bf16",
        lambda d: _call(d, 2, (8, 2), d.odd(200, 299), 128, dtype=BF16, strides=rows_apart, layout=INTERLEAVED),
        tiers=ON_GPU,
    ),
    Case("bf16, a part of the head", lambda d: _call(d, 2, (8, 2), d.odd(200, 299), 80, 32, dtype=BF16), tiers=ON_GPU),
)

TIMED = (
    Case(
        "heads side by side, halves",
        lambda d: _call(
            d, 4, 32, d.sized(2048), 128, layout=HALVES, dtype=BF16, strides=rows_apart, out_strides=rows_apart
        ),
    ),
    Case(
        "fewer heads of keys, interleaved",
        lambda d: _call(d, 4, (32, 8), d.sized(3072), 128, layout=INTERLEAVED, dtype=BF16),
    ),
)


def _floor_s(v, ceilings) -> float:
    """Every element read once and written once."""
    return sum(2 * v[name].nbytes for name in "qk") / ceilings.bytes_per_s


SPEED = Exercise(
    name="rope.speed",
    entry="rope_into",
    points=2,
    about="the rotation out of place, for any layout",
    point=("halves", "many rows"),
    kind="kernel",
    cases=CASES,
    writes=("q_out", "k_out"),
    oracle=both(turned),
    precision=Precision(
        good=both(in_fp32),
        good_is="fp32 throughout",
        lower=both(rough),
        lower_is=ROUGH_IS,
        floor_ulps=FLOOR_ULPS,
    ),
    mistakes=MISTAKES,
    where=wrong_pairs,
    speed=Speed(
        points=6,
        cases=TIMED,
        floor_s=_floor_s,
        full=0.9,
        none=0.3,
        reference="course_lib.kernels.timed:rope_into",
    ),
    shows_not="speed, bf16, and races between programs",
)
