"""flash.tiled: attention a block of keys at a time, in plain PyTorch.

    tiled_forward(q, k, v, causal, scale, block) -> (o, lse)

q is (B, H, n_q, D), k and v are (B, H, n_k, D): as many heads of keys as of queries here. With s = scale q kᵀ

    o    softmax of the rows of s, times v; shape and type of q
    lse  log of the sum of exp(s), over each row: (B, H, n_q), fp32, natural logarithm

`causal`: query m sees key n where n <= m + n_k - n_q, so the last query sees the last key; otherwise all keys. A query
that sees no key gives zeros and lse = -inf. `scale` is a number, perhaps negative, perhaps neither 1/8 nor 1/sqrt(D).

Walk over the keys `block` at a time with a running maximum, a running sum and an accumulator in fp32, all queries at
once; the last block may be shorter. Scores of all keys at once, (n_q, n_k), must never exist, in no type and no shape,
and the memory that a call takes does not grow with their number. The inputs may be strided in any way and stay as they
are. All of it is done with torch.
"""

from autograder.exercise import Call, Case, Draw, Exercise, Precision
from autograder.exercises.dtypes import FP16, FP32
from autograder.exercises.flash.attention import forward_in_fp32, forward_truth
from autograder.exercises.flash.inputs import (
    FLOOR_ULPS,
    TF32_OR_E4M3_IS,
    a_scale,
    call,
    laid_out,
    tensors,
    tf32_or_e4m3,
)
from autograder.exercises.flash.places import wrong_rows
from autograder.exercises.flash.tiled_mistakes import MISTAKES
from autograder.exercises.strides import columns_apart, rows_apart

ORDER = "q k v causal scale block"


def _call(draw: Draw, sizes, causal=False, block=None, scale=None, layout=None, **options) -> Call:
    """sizes: batch, heads, queries, keys, head size."""
    args = tensors(draw, *sizes, **{"dtype": FP32, **options})
    args = laid_out(draw, args, layout or {})
    scale = a_scale(draw, sizes[-1]) if scale is None else scale
    block = block or draw.choice([7, 16, 24, 33])
    return call(args | {"causal": causal, "scale": scale, "block": block}, ORDER)


def _odd_sizes(d: Draw, low=(20, 39), high=(60, 89)) -> tuple[int, ...]:
    return 2, 3, d.odd(*low), d.odd(*high), d.choice([8, 20, 40])


def _square(d: Draw) -> tuple[int, ...]:
    n = d.odd(50, 79)
    return 2, 2, n, n, 16


def _long(d: Draw, **options) -> Call:
    """33 blocks in a row; all scores would take 1.1 MB."""
    return _call(d, (1, 1, 128, d.odd(2060, 2099), 8), block=64, **options)


CASES = (
    Case("one block", lambda d: _call(d, (1, 2, 5, 16, 8), block=16)),
    Case("whole blocks", lambda d: _call(d, (2, 2, 12, 64, 16), block=16)),
    Case("a shorter last block", lambda d: _call(d, (2, 3, 20, 16 * d.integer(3, 5) + 5, 24), block=16)),
    Case("one query, one key", lambda d: _call(d, (1, 1, 1, 1, 4))),
    Case("blocks of one key", lambda d: _call(d, (1, 2, 6, d.odd(10, 19), 8), block=1)),
    Case("a block wider than the row", lambda d: _call(d, (2, 2, 9, d.integer(5, 20), 8), block=64)),
    Case("odd sizes", lambda d: _call(d, _odd_sizes(d))),
    Case("head size 72", lambda d: _call(d, (2, 2, d.odd(20, 29), d.odd(40, 59), 72))),
    Case("causal", lambda d: _call(d, _square(d), causal=True)),
    Case("causal, more keys than queries", lambda d: _call(d, _odd_sizes(d), causal=True)),
    Case("causal, more queries than keys", lambda d: _call(d, _odd_sizes(d, (60, 79), (30, 45)), causal=True)),
    Case("large scores", lambda d: _call(d, _odd_sizes(d), scale=0.25, offset=d.integer(400, 440))),
    Case("huge scores", lambda d: _call(d, _odd_sizes(d), spread=12.0, dtype=FP16)),
    Case("very negative scores", lambda d: _call(d, _odd_sizes(d), scale=0.25, offset=-d.integer(480, 520))),
    Case("a negative scale", lambda d: _call(d, _odd_sizes(d), scale=-0.25, spread=9.0, dtype=FP16)),
    Case("fp16", lambda d: _call(d, _odd_sizes(d), dtype=FP16)),
    Case("fp16, a long row", lambda d: _call(d, (1, 1, 3, 2000, 16), dtype=FP16, block=16, scale=0.01, mean_v=60.0)),
    Case(
        "strided inputs",
        lambda d: _call(d, _odd_sizes(d), layout={"q": rows_apart, "k": columns_apart, "v": rows_apart}),
    ),
    Case("little memory", _long),
    Case("little memory, causal", lambda d: _long(d, causal=True)),
)


def typed(v, made: dict) -> dict:
    """As the function returns it: o in the type of q, lse in fp32."""
    return {"o": made["out"].to(v["q"].dtype), "lse": made["lse"].float()}


TILED = Exercise(
    name="flash.tiled",
    entry="tiled_forward",
    points=4,
    about="attention without ever holding all scores",
    point=("a shorter last block", "odd sizes", "little memory"),
    kind="kernel",
    cases=CASES,
    returns=("o", "lse"),
    oracle=lambda v: {"o": (made := forward_truth(v))["out"], "lse": made["lse"]},
    precision=Precision(
        good=lambda v: typed(v, forward_in_fp32(v)),
        good_is="fp32 throughout, the weights in the type of v",
        lower=lambda v: typed(v, forward_in_fp32(v, tf32_or_e4m3)),
        lower_is=f"inputs {TF32_OR_E4M3_IS}",
        floor_ulps=FLOOR_ULPS,
    ),
    mistakes=MISTAKES,
    where=wrong_rows,
    launches=False,
    probe="autograder.inside.probes.tiling:in_tiles",
)
