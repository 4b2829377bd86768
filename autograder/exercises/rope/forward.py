"""rope.forward: queries and keys turned where they lie.

    rope_(q, k, cos, sin, positions, offset, layout)

q is (B, H, S, D) and k (B, H_kv, S, D), both fp32 or fp16, or bf16 on a GPU, in any strides, the last one too; there
may be more heads of q than of k. cos and sin are (positions, P), fp32 and contiguous: pair j of a row is turned by the
angle of column j, so the first R = 2 P elements of a head are turned, and the other D - R are left alone. R is any even
number up to D. `layout` says what a pair is:

    "halves"        (x[j], x[j + P])
    "interleaved"   (x[2 j], x[2 j + 1])

Row s of sequence b is at position offset + positions[b, s]; positions is (B, S) in int32 with any strides, or None, and
then the position is offset + s. The tables hold every position that comes. With the cosine and the sine of its angle

    y0 = x0 cos - x1 sin        y1 = x1 cos + x0 sin

in fp32, rounded once, and written where x0 and x1 were, without a copy of q or k. What the function returns is not
looked at. All arithmetic is in kernels.
"""

import torch

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Precision
from autograder.exercises.dtypes import BF16, FP16, FP32
from autograder.exercises.rope.forward_mistakes import MISTAKES
from autograder.exercises.rope.inputs import call_words, ids, tables, with_gap
from autograder.exercises.rope.places import wrong_pairs
from autograder.exercises.rope.rotation import FLOOR_ULPS, LAYOUTS, ROUGH_IS, in_fp32, rough, turned
from autograder.exercises.strides import columns_apart, far_apart, rows_apart

HALVES, INTERLEAVED = LAYOUTS  # a case has always the same one, so that it shows the same mistakes under every seed


def _call(
    d: Draw, batch, heads, length, head_size, rotary=None, layout=HALVES, dtype=FP32, strides=None, positions=None,
    offset=None, id_strides=None,
) -> Call:  # fmt: skip
    """heads: of q and of k; strides: a function of a shape; positions: lists of numbers."""
    heads, kv_heads = heads if isinstance(heads, tuple) else (heads, heads)
    offset = d.integer(3, 30) if offset is None else offset
    last = offset + max(map(max, positions)) if positions else offset + length - 1
    args = {}
    for name, h in (("q", heads), ("k", kv_heads)):
        shape = (batch, h, length, head_size)
        args[f"{name}_before"] = d.normal(*shape, dtype=dtype)
        args[name] = d.empty(*shape, dtype=dtype, strides=strides(shape) if strides else None)
    args = {name: args[name] for name in ("q_before", "k_before", "q", "k")}
    args |= tables(d, rotary or head_size, last + 1 + d.integer(1, 4))
    given = None
    if positions:
        given = d.lay_out(torch.tensor(positions, dtype=torch.int32), id_strides)
    args |= {"positions": given, "offset": offset, "layout": layout}
    return Call(args, call_words(args["q"], args["k"], args))


def _sequences(d: Draw, packed: bool, offset: int, **options) -> Call:
    """Several sequences with positions of their own."""
    length = d.odd(10, 15)
    return _call(d, 3, (2, 1), length, 16, positions=ids(d, 3, length, packed), offset=offset, **options)


def _strided_ids(d: Draw) -> Call:
    length = d.odd(10, 15)
    apart = (1, 3) if d.choice([True, False]) else (2 * length + 5, 2)
    return _call(d, 3, 1, length, 16, positions=ids(d, 3, length), offset=0, id_strides=apart)


def _past_int32(d: Draw) -> Call:
    """The third sequence of q begins past 2^31 elements. 4.3 GB, nearly all of it gap."""
    made = _call(d, 3, 2, 40, 64, dtype=FP16, layout="halves")
    made.args["q"] = far_apart(made.args["q"])
    return made


CASES = (
    Case("one row", lambda d: _call(d, 1, 1, 1, 16)),
    Case("whole blocks", lambda d: _call(d, 1, 2, 16, 32, layout=HALVES, offset=0)),
    # the two plainest are the largest, so a report quotes them where they are wrong
    Case("halves", lambda d: _call(d, 2, 2, d.odd(23, 31), 32, layout=HALVES)),
    Case("interleaved", lambda d: _call(d, 2, 2, d.odd(23, 31), 32, layout=INTERLEAVED)),
    Case("head size 72", lambda d: _call(d, 1, 2, d.odd(9, 15), 72, layout=INTERLEAVED)),
    Case("head size 72, halves", lambda d: _call(d, 1, 2, d.odd(9, 15), 72, layout=HALVES)),
    Case("a part of the head", lambda d: _call(d, 1, 2, d.odd(9, 15), 48, 24, layout=HALVES)),
    Case(
        "a part of the head, interleaved",
        lambda d: _call(d, 1, 2, d.odd(9, 15), 40, 24, layout=INTERLEAVED),
    ),
    Case("fewer heads of keys", lambda d: _call(d, 2, (6, 2), d.odd(9, 15), 16)),
    Case("many rows", lambda d: _call(d, 1, 1, d.odd(67, 79), 16, layout=INTERLEAVED)),
    Case("heads side by side", lambda d: _call(d, 2, (4, 2), d.odd(9, 15), 16, strides=rows_apart)),
    Case(
        "views of a projection",
        lambda d: _call(d, 2, (4, 2), d.odd(9, 15), 16, strides=with_gap(24), layout=INTERLEAVED),
    ),
    Case("elements apart", lambda d: _call(d, 1, 2, d.odd(9, 15), 16, strides=columns_apart)),
    Case("an offset", lambda d: _call(d, 2, 2, d.odd(9, 15), 16, offset=d.integer(50, 90), layout=INTERLEAVED)),
    Case("position ids", lambda d: _sequences(d, packed=False, offset=0)),
    Case("packed sequences", lambda d: _sequences(d, packed=True, offset=0, layout=INTERLEAVED)),
    Case("position ids and an offset", lambda d: _sequences(d, packed=True, offset=d.integer(20, 40))),
    Case("strided position ids", _strided_ids),
    Case("fp16", lambda d: _call(d, 2, (4, 2), d.odd(17, 27), 40, dtype=FP16, strides=rows_apart, layout=INTERLEAVED)),
    Case(
        "fp16, a part of the head",
        lambda d: _call(d, 1, 2, d.odd(9, 15), 64, 32, layout=HALVES, dtype=FP16, strides=rows_apart),
    ),
    Case("bf16", lambda d: _call(d, 2, (8, 2), d.odd(200, 299), 128, dtype=BF16, strides=rows_apart), tiers=ON_GPU),
    Case(
        "bf16, a part of the head",
        lambda d: _call(d, 2, (8, 2), d.odd(200, 299), 80, 32, dtype=BF16, layout=INTERLEAVED),
        tiers=ON_GPU,
    ),
    Case(
        "many heads of q for one of k", lambda d: _call(d, 2, (32, 2), d.odd(2040, 2059), 64, dtype=FP16), tiers=ON_GPU
    ),
    Case(
        "more than 65535 rows",
        lambda d: _call(d, 1, 1, d.odd(65700, 66099), 16, offset=5, layout=INTERLEAVED),
        tiers=ON_GPU,
    ),
    Case("more than 65535 sequences", lambda d: _call(d, d.odd(65700, 66099), 1, 1, 16, offset=5), tiers=ON_GPU),
    Case("offsets past 2^31", _past_int32, tiers=ON_GPU, live=False, share=0.5),
)


def _both(v, turn) -> dict:
    return {name: turn(v, v[f"{name}_before"]) for name in "qk"}


FORWARD = Exercise(
    name="rope.forward",
    entry="rope_",
    points=8,
    about="q and k turned in place by one kernel, wherever their heads lie",
    point=("halves", "interleaved", "heads side by side"),
    kind="kernel",
    cases=CASES,
    writes=("q", "k"),
    oracle=lambda v: _both(v, turned),
    precision=Precision(
        good=lambda v: _both(v, in_fp32),
        good_is="fp32 throughout",
        lower=lambda v: _both(v, rough),
        lower_is=ROUGH_IS,
        floor_ulps=FLOOR_ULPS,
    ),
    mistakes=MISTAKES,
    probe="autograder.inside.probes.rotating:in_place",
    where=wrong_pairs,
    shows_not="speed, bf16, races between programs, more than 65535 programs in a dimension of the grid, and offsets "
    "past 2^31",
)
