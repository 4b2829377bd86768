"""flash.backward: the gradients of attention, probabilities made again from L.

    flash_backward(q, k, v, out, lse, dout, dq, dk, dv, causal, scale, k_lengths)

Shapes, types, `causal`, `scale` and `k_lengths` are those of flash.forward; `out` and `lse` are what it stored, dout is
like q, and dq, dk, dv are like q, k, v. All strides may be anything, those of dout among them; lse is contiguous. With

    p = exp(s - lse)    dp = dout vᵀ    delta = sum over d of out dout    ds = p (dp - delta)

the function fills

    dq = scale ds k    dk = scale dsᵀ q    dv = pᵀ dout

dk and dv of one head of keys are sums over all query heads that share it. Keys from k_lengths[b] on get zeros, also
where k and v hold NaN, and so do queries that see no key: their lse is -inf, and nothing may become NaN. The outputs
hold NaN before the call.

The same inputs give the same bits every time: no two programs add to one number. Precision as in flash.forward: fp32
accumulators, p and ds may be converted to the type of the inputs. All arithmetic is in kernels, delta's too.
"""

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Precision
from autograder.exercises.dtypes import BF16, FP16
from autograder.exercises.flash.attention import backward_in_fp32, backward_truth, scores_in_memory
from autograder.exercises.flash.backward_mistakes import MISTAKES
from autograder.exercises.flash.forward import CAUSAL, PROJECTED, SOME_SIZE, TURNED, some_lengths
from autograder.exercises.flash.inputs import (
    AGAIN,
    BEHIND,
    FIRST,
    FLOOR_ULPS,
    TF32_OR_E4M3_IS,
    call,
    empty_like,
    laid_out,
    settings,
    tensors,
    tf32_or_e4m3,
    wide,
    with_nan_behind,
    with_results,
)
from autograder.exercises.flash.places import wrong_rows
from autograder.exercises.strides import columns_apart, far_apart, rows_apart

ORDER = "q k v out lse dout dq dk dv causal scale k_lengths"
WRITES = ("dq", "dk", "dv")


def _call(draw: Draw, batch, heads, n_q, n_k, head_size, layout=None, out_layout=None, mask=None, **values) -> Call:
    """As in flash.forward; `layout` may name out and dout, `out_layout` is for dq, dk and dv."""
    args = tensors(draw, batch, heads, n_q, n_k, head_size, **values)
    args |= settings(draw, args, **(mask or {}))
    args["dout"] = draw.normal(*args["q"].shape, dtype=values.get("dtype") or wide(draw))
    return _finished(draw, args, layout, out_layout)


def _finished(draw: Draw, args: dict, layout=None, out_layout=None) -> Call:
    args = laid_out(draw, args | with_results(draw, args), layout or {})
    args |= {f"d{name}": empty_like(draw, args[name], out_layout) for name in "qkv"}
    return call(args, ORDER)


def _lengths(d: Draw, *fixed: int, causal=False, more=0) -> Call:
    n_k = d.odd(50, 69)
    mask = {"causal": causal, "k_lengths": some_lengths(d, n_k, *fixed, n_k)}
    return _call(d, 4, 1, n_k - more if more else d.odd(20, 39), n_k, 32, mask=mask)


def _square(d: Draw, low=70, high=99, batch=1, heads=1, head_size=32, **options) -> Call:
    n = d.odd(low, high)
    return _call(d, batch, heads, n, n, head_size, **options)


def _large_partial_sums(d: Draw) -> Call:
    """Half of the queries add more than 65504 to dv and to dk, the other half takes most of it away again."""
    n_q = 2 * d.integer(400, 450)
    args = tensors(d, 1, 1, n_q, 3, 16, dtype=FP16)
    args["q"] = args["q"] * 0.1 + 1
    # Keys whose values differ for certain: by chance they were alike under 6 seeds of 100, and dk stayed small.
    args["v"] = args["v"] * 0.25 + args["v"].new_tensor([-0.5, 0.0, 0.5])[:, None]
    args |= settings(d, args, scale=0.05)
    dout = d.normal(1, 1, n_q, 16) * 20 + 600.0
    dout[:, :, n_q // 2 :] -= 1200.0
    return _finished(d, args | {"dout": dout.half()})


def _of_one_shape(d: Draw, lengths: tuple[int, int, int], scale: float, layout=None) -> Call:
    mask = {"k_lengths": lengths, "scale": round(scale, 5)}
    return _call(d, 3, (4, 2), 37, 61, 16, layout=layout, mask=mask)


def _past_int32(d: Draw) -> Call:
    """The third sequence of dout begins past 2^31 elements. 4.3 GB, nearly all of it gap."""
    made = _call(d, 3, 2, 40, 60, 64, dtype=FP16)
    made.args["dout"] = far_apart(made.args["dout"])
    return made


def projected_with_gap(shape):
    return rows_apart(shape, 8)


DOUT = {"dout": projected_with_gap}
DOUT_TURNED = {"dout": columns_apart, "out": rows_apart}

# Lengths of causal cases: one is odd and the other even, so no tile begins or ends where the keys of a row end.
CASES = (
    Case("one query", lambda d: _call(d, 1, 1, 1, d.odd(17, 29), 16)),
    Case("whole tiles", lambda d: _call(d, 1, 1, 128, 128, 64)),
    Case("odd lengths", lambda d: _call(d, 1, 2, d.odd(34, 59), d.odd(66, 89), 32)),
    Case("more queries than keys", lambda d: _call(d, 1, 2, d.odd(70, 89), d.odd(34, 59), 32)),
    Case("head size 72", lambda d: _call(d, 1, 2, d.odd(20, 39), d.odd(40, 59), 72)),
    Case("another head size", lambda d: _call(d, 1, 1, d.odd(20, 39), d.odd(40, 59), d.choice(SOME_SIZE))),
    Case("head size 128", lambda d: _call(d, 1, 1, d.odd(20, 39), d.odd(40, 59), 128)),
    Case("grouped heads", lambda d: _call(d, 2, (6, 2), d.odd(17, 29), d.odd(34, 49), 16)),
    Case("causal", lambda d: _square(d, mask=CAUSAL)),
    Case(
        "causal, more keys than queries",
        lambda d: _call(d, 1, 1, d.odd(34, 59), 2 * d.integer(57, 63), 32, mask=CAUSAL),
    ),
    Case(
        "causal, more queries than keys",
        lambda d: _call(d, 1, 1, d.odd(200, 229), 2 * d.integer(65, 71), 32, mask=CAUSAL),
    ),
    # dq and dk of a key that is seen alone are 0, and any answer for them is the rounding of its own order of sums
    Case("key lengths", lambda d: _lengths(d, 2)),
    Case(BEHIND, lambda d: with_nan_behind(_lengths(d, 33))),
    Case("a sequence without keys", lambda d: _lengths(d, 0)),
    Case("causal with key lengths", lambda d: _lengths(d, 3, causal=True, more=d.integer(9, 20))),
    Case("dout not contiguous", lambda d: _call(d, 2, 3, d.odd(130, 149), d.odd(40, 59), 16, layout=DOUT)),
    Case("columns of dout apart", lambda d: _call(d, 1, 2, d.odd(20, 39), d.odd(40, 59), 32, layout=DOUT_TURNED)),
    Case("strided inputs", lambda d: _call(d, 2, 3, d.odd(130, 149), d.odd(130, 149), 16, layout=PROJECTED)),
    Case("columns apart", lambda d: _call(d, 1, 2, d.odd(20, 39), d.odd(40, 59), 32, layout=TURNED)),
    Case(
        "strided outputs",
        lambda d: _call(d, 2, 3, d.odd(20, 39), d.odd(40, 59), 16, out_layout=projected_with_gap),
    ),
    Case(FIRST, lambda d: _of_one_shape(d, (61, d.integer(2, 20), d.integer(30, 50)), d.number(0.1, 0.13))),
    Case(
        AGAIN,
        lambda d: _of_one_shape(d, (d.integer(21, 29), 61, d.integer(51, 60)), d.number(0.32, 0.4), PROJECTED),
    ),
    Case(
        "large scores",
        lambda d: _call(d, 1, 1, d.odd(20, 39), d.odd(60, 89), 32, offset=d.integer(400, 440), mask={"scale": 0.25}),
    ),
    Case(
        "very negative scores",
        lambda d: _call(d, 1, 1, d.odd(20, 39), d.odd(66, 89), 32, offset=-d.integer(480, 520), mask={"scale": 0.25}),
    ),
    Case(
        "a negative scale",
        lambda d: _call(d, 1, 1, d.odd(20, 39), d.odd(60, 89), 32, mask={"scale": -0.3}),
    ),
    Case("large partial sums", _large_partial_sums),
    Case("fp16", lambda d: _call(d, 2, (4, 2), d.odd(34, 49), d.odd(50, 69), 40, dtype=FP16, mask=CAUSAL)),
    Case("bf16", lambda d: _call(d, 2, (4, 2), d.odd(200, 299), d.odd(300, 399), 64, dtype=BF16), tiers=ON_GPU),
    Case(
        "bf16, head size 72",
        lambda d: _square(d, 250, 261, 2, 4, 72, layout=PROJECTED | DOUT, dtype=BF16),
        tiers=ON_GPU,
    ),
    Case("large", lambda d: _square(d, 750, 849, 1, (4, 2), 128, mask=CAUSAL, dtype=BF16), tiers=ON_GPU),
    Case("more than 65535 heads", lambda d: _call(d, 3, 22001, 1, 2, 16), tiers=ON_GPU),
    Case("offsets past 2^31", _past_int32, tiers=ON_GPU, live=False, share=0.5),
)

BACKWARD = Exercise(
    name="flash.backward",
    entry="flash_backward",
    points=12,
    about="gradients from scores that are made again, tile by tile",
    point=("odd lengths", "causal, more keys than queries", "grouped heads"),
    parts=(("dq", 0.4), ("dk", 0.3), ("dv", 0.3)),
    kind="kernel",
    cases=CASES,
    writes=WRITES,
    oracle=backward_truth,
    precision=Precision(
        good=backward_in_fp32,
        good_is="fp32 throughout, p and ds in the type of the inputs",
        lower=lambda v: backward_in_fp32(v, tf32_or_e4m3),
        lower_is=f"inputs {TF32_OR_E4M3_IS}",
        floor_ulps=FLOOR_ULPS,
        by_row=False,  # dq of a query that sees one key is 0, and any answer for it the rounding of its own order
    ),
    mistakes=MISTAKES,
    scratch=scores_in_memory,
    deterministic=True,
    where=wrong_rows,
    shows_not="speed, bf16, races between programs, the rounding inside tensor cores, more than 65535 programs in a "
    "dimension of the grid, and offsets past 2^31",
)
