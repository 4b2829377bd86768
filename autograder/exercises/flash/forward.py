"""flash.forward: attention in one kernel, the scores never in memory.

    flash_forward(q, k, v, out, lse, causal, scale, k_lengths)

q and out are (B, H, n_q, D), k and v (B, H_kv, n_k, D), lse (B, H, n_q) in fp32 and contiguous, k_lengths (B,) in int32
or None. H is a multiple of H_kv: query head h reads head h // (H / H_kv) of k and v. D is any number from 16 to 128,
72 among them. q, k, v and out are of one type: fp16 or bf16 on a GPU, fp16 or fp32 in the interpreter. All strides of
q, k, v and out may be anything, the last one too. With s = scale q kᵀ, `scale` any number, negative ones too:

    out  softmax of the rows of s, times v
    lse  log of the sum of exp(s), over each row, natural logarithm

Which keys a query sees: with k_lengths, sequence b has the keys 0 .. k_lengths[b] - 1 (0 <= k_lengths[b] <= n_k); with
`causal`, query m sees key n only where n <= m + n_k - n_q. The two are separate: k_lengths moves no diagonal. A query
that sees no key gives zeros and lse = -inf. What k and v hold from k_lengths[b] on is not used: it may be NaN, and a
weight of 0 times NaN is NaN.

Precision: products of fp32 with `input_precision="ieee"`; maximum, sum and accumulator in fp32; the weights may be
converted to the type of v for the second product. The result lies in `out` and `lse`; all arithmetic is in kernels.
"""

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Precision
from autograder.exercises.dtypes import BF16, FP16
from autograder.exercises.flash.attention import forward_in_fp32, forward_truth, scores_in_memory
from autograder.exercises.flash.forward_mistakes import MISTAKES
from autograder.exercises.flash.inputs import (
    AGAIN,
    BEHIND,
    FIRST,
    FLOOR_ULPS,
    TF32_OR_E4M3_IS,
    call,
    empty_like,
    laid_out,
    lse_of,
    settings,
    tensors,
    tf32_or_e4m3,
    with_nan_behind,
)
from autograder.exercises.flash.places import wrong_rows
from autograder.exercises.strides import columns_apart, far_apart, rows_apart

ORDER = "q k v out lse causal scale k_lengths"


# Where the maximum is taken before the scale, weights in fp16 have all of their bits if products of q and k are small,
# and none if they are large. By these factors of q and k head sizes keep away from what lies between, which each draw
# decides anew; the scale makes up for them.
SPREAD = {16: 0.75, 32: 0.6}


def _call(draw: Draw, batch, heads, n_q, n_k, head_size, layout=None, out_layout=None, mask=None, **values) -> Call:
    """`layout`: strides of inputs; `mask`: causal, scale, k_lengths; `values`: see inputs.tensors."""
    spread = 1.0 if values.keys() & {"offset", "spread"} else SPREAD.get(head_size, 1.0)
    made = tensors(draw, batch, heads, n_q, n_k, head_size, **{"spread": spread, **values})
    args = laid_out(draw, made, layout or {})
    args |= {"out": empty_like(draw, args["q"], out_layout), "lse": lse_of(draw, args["q"])}
    args |= settings(draw, args, **(mask or {}))
    return call(args | {"scale": round(args["scale"] / spread**2, 5)}, ORDER)


CAUSAL = {"causal": True}
RISE = 0.45  # score of the last key for one query: beside it 1800 weights still add up to 1800 e^-0.45 = 1150


def some_lengths(d: Draw, n_k: int, *fixed: int) -> list[int]:
    """Key lengths of 4 sequences: those given, and others between; in any order."""
    given = [*fixed, *(d.integer(2, n_k - 1) for _ in range(4 - len(fixed)))]
    d.rng.shuffle(given)
    return given


def _lengths(d: Draw, *fixed: int, causal=False, more=0) -> Call:
    n_k = d.odd(50, 69)
    mask = {"causal": causal, "k_lengths": some_lengths(d, n_k, *fixed, n_k)}
    return _call(d, 4, 2, n_k - more if more else d.odd(20, 39), n_k, 32, mask=mask)


def _square(d: Draw, low, high, batch=1, heads=2, head_size=32, **options) -> Call:
    n = d.odd(low, high)
    return _call(d, batch, heads, n, n, head_size, **options)


def _of_one_shape(d: Draw, lengths: tuple[int, int, int], scale: float, layout=None) -> Call:
    mask = {"k_lengths": lengths, "scale": round(scale, 5)}
    return _call(d, 3, (4, 2), 37, 61, 32, layout=layout, mask=mask)


def _long_row(d: Draw) -> Call:
    """The sum of weights times v, 1150 times 60, passes 65504. The last key has the largest score of the last query, so
    the maximum rises in the last block in every draw."""
    made = _call(d, 1, 1, 3, d.integer(1800, 2000), 16, dtype=FP16, mean_v=60.0, spread=0.5, mask={"scale": 0.05})
    q, k = made.args["q"][0, 0, -1].float(), made.args["k"]
    k[0, 0, -1] = (RISE / made.args["scale"] * q / q.square().sum()).to(k.dtype)
    return made


def _past_int32(d: Draw) -> Call:
    """The third sequence of k begins past 2^31 elements. 4.3 GB, nearly all of it gap."""
    args = tensors(d, 3, 2, 40, 60, 64, dtype=FP16)
    args["k"] = far_apart(args["k"])
    args |= {"out": empty_like(d, args["q"]), "lse": lse_of(d, args["q"])}
    return call(args | settings(d, args), ORDER)


# Cases are judged on one core of the host, dozens of formulas each: at most a few million scores.
SOME_SIZE = (24, 40, 48, 56, 80, 96, 112)
PROJECTED = {"q": rows_apart, "k": lambda shape: rows_apart(shape, 8), "v": rows_apart}
TURNED = {"q": columns_apart, "k": columns_apart, "v": columns_apart}

# Lengths of causal cases: one is odd and the other even, so no tile begins or ends where the keys of a row end.
CASES = (
    Case("one query, one key", lambda d: _call(d, 1, 1, 1, 1, 16)),
    Case("whole tiles", lambda d: _call(d, 1, 1, 128, 128, 64)),
    Case("odd lengths", lambda d: _call(d, 1, 2, d.odd(34, 59), d.odd(66, 89), 32)),
    Case("more queries than keys", lambda d: _call(d, 1, 2, d.odd(70, 89), d.odd(34, 59), 32)),
    Case("head size 72", lambda d: _call(d, 1, 2, d.odd(20, 39), d.odd(40, 59), 72)),
    Case("another head size", lambda d: _call(d, 1, 2, d.odd(20, 39), d.odd(40, 59), d.choice(SOME_SIZE))),
    Case("head size 128", lambda d: _call(d, 1, 1, d.odd(20, 39), d.odd(40, 59), 128)),
    Case("grouped heads", lambda d: _call(d, 2, (6, 2), d.odd(17, 29), d.odd(34, 49), 16)),
    Case("causal", lambda d: _square(d, 90, 115, mask=CAUSAL)),  # a second tile of 64 keys, and not just its edge
    Case(
        "causal, more keys than queries",
        lambda d: _call(d, 1, 2, d.odd(34, 59), 2 * d.integer(57, 63), 32, mask=CAUSAL),
    ),
    Case(
        "causal, more queries than keys",
        lambda d: _call(d, 1, 2, d.odd(200, 229), 2 * d.integer(81, 87), 32, mask=CAUSAL),
    ),
    Case("key lengths", lambda d: _lengths(d, 1)),
    Case(BEHIND, lambda d: with_nan_behind(_lengths(d, 33))),
    Case("a sequence without keys", lambda d: _lengths(d, 0)),
    Case("causal with key lengths", lambda d: _lengths(d, 3, causal=True, more=d.integer(9, 20))),
    Case("strided inputs", lambda d: _call(d, 2, 3, d.odd(20, 39), d.odd(130, 149), 16, layout=PROJECTED)),
    Case("columns apart", lambda d: _call(d, 1, 2, d.odd(20, 39), d.odd(40, 59), 32, layout=TURNED)),
    Case(
        "strided output",
        lambda d: _call(d, 2, 3, d.odd(20, 39), d.odd(40, 59), 16, out_layout=lambda shape: rows_apart(shape, 8)),
    ),
    Case(FIRST, lambda d: _of_one_shape(d, (61, d.integer(2, 20), d.integer(30, 50)), d.number(0.1, 0.13))),
    Case(
        AGAIN, lambda d: _of_one_shape(d, (d.integer(21, 29), 61, d.integer(51, 60)), d.number(0.22, 0.27), PROJECTED)
    ),
    Case(
        "large scores",
        lambda d: _call(d, 1, 2, d.odd(20, 39), d.odd(60, 89), 32, offset=d.integer(400, 440), mask={"scale": 0.25}),
    ),
    Case("huge scores", lambda d: _call(d, 1, 2, d.odd(20, 39), d.odd(90, 115), 32, spread=12.0, dtype=FP16)),
    Case(
        "very negative scores",
        lambda d: _call(d, 1, 2, d.odd(20, 39), d.odd(60, 89), 32, offset=-d.integer(480, 520), mask={"scale": 0.25}),
    ),
    Case(
        "a negative scale",
        lambda d: _call(d, 1, 2, d.odd(20, 39), d.odd(60, 89), 32, spread=9.0, dtype=FP16, mask={"scale": -0.2}),
    ),
    Case("a long row", _long_row),
    Case("fp16", lambda d: _call(d, 2, (4, 2), d.odd(34, 49), d.odd(50, 69), 40, dtype=FP16, mask=CAUSAL)),
    Case("bf16", lambda d: _call(d, 2, (4, 2), d.odd(200, 299), d.odd(300, 399), 64, dtype=BF16), tiers=ON_GPU),
    Case(
        "bf16, head size 72",
        lambda d: _square(d, 250, 261, batch=2, heads=4, head_size=72, layout=PROJECTED, dtype=BF16),
        tiers=ON_GPU,
    ),
    Case("large", lambda d: _square(d, 750, 849, 1, (4, 2), 128, mask=CAUSAL, dtype=BF16), tiers=ON_GPU),
    Case("more than 65535 heads", lambda d: _call(d, 3, 22001, 1, 2, 16), tiers=ON_GPU),
    Case("offsets past 2^31", _past_int32, tiers=ON_GPU, live=False, share=0.5),
)

FORWARD = Exercise(
    name="flash.forward",
    entry="flash_forward",
    points=12,
    about="the online softmax in a kernel, tile by tile",
    point=("odd lengths", "causal, more keys than queries", "very negative scores"),
    kind="kernel",
    cases=CASES,
    writes=("out", "lse"),
    oracle=forward_truth,
    precision=Precision(
        good=forward_in_fp32,
        good_is="fp32 throughout, the weights in the type of v",
        lower=lambda v: forward_in_fp32(v, tf32_or_e4m3),
        lower_is=f"inputs {TF32_OR_E4M3_IS}",
        floor_ulps=FLOOR_ULPS,
    ),
    mistakes=MISTAKES,
    scratch=scores_in_memory,
    where=wrong_rows,
    shows_not="speed, bf16, the rounding inside tensor cores, more than 65535 programs in a dimension of the grid, "
    "and offsets past 2^31",
)
