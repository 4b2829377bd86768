"""flash.speed: one training step of attention, forward and backward, as fast as this device allows.

    attention_step(q, k, v, dout, out, lse, dq, dk, dv, causal, scale)

Fills out and lse from q, k and v, then dq, dk and dv from these and dout. Every sequence has all its keys, and there
are as many heads of keys as of queries; all else is as in flash.forward and flash.backward, odd lengths, head sizes
and strides included. What of the two earlier answers is used here, and how it is tuned, is free.

The floor counts 14 B H n_q n_k D operations, 2 products forward and 5 backward, half of it when causal, at the rate
this device sustains. Two passes backward make 7 products where 5 are counted.
"""

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Precision, Speed
from autograder.exercises.dtypes import BF16, DTYPE_NAMES, FP16
from autograder.exercises.flash.attention import backward_in_fp32, backward_truth, forward_in_fp32, forward_truth
from autograder.exercises.flash.forward import CAUSAL
from autograder.exercises.flash.inputs import (
    AGAIN,
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
    wide,
)
from autograder.exercises.flash.places import wrong_rows
from autograder.exercises.flash.speed_mistakes import MISTAKES
from autograder.exercises.strides import columns_apart, rows_apart

ORDER = "q k v dout out lse dq dk dv causal scale"
WRITES = ("out", "lse", "dq", "dk", "dv")


def _call(draw: Draw, batch, heads, n_q, n_k, head_size, layout=None, mask=None, **values) -> Call:
    args = tensors(draw, batch, heads, n_q, n_k, head_size, **values)
    args |= settings(draw, args, **(mask or {}))
    args["dout"] = draw.normal(*args["q"].shape, dtype=values.get("dtype") or wide(draw))
    args = laid_out(draw, args, layout or {})
    args |= {"out": empty_like(draw, args["q"]), "lse": lse_of(draw, args["q"])}
    args |= {f"d{name}": empty_like(draw, args[name]) for name in "qkv"}
    return call(args, ORDER)


def _square(d: Draw, n: int, batch=1, heads=1, head_size=32, **options) -> Call:
    return _call(d, batch, heads, n, n, head_size, **options)


STRIDED = {"q": rows_apart, "k": columns_apart, "v": rows_apart, "dout": lambda shape: rows_apart(shape, 8)}

CASES = (
    Case("whole tiles", lambda d: _square(d, 128, head_size=64)),
    Case("odd lengths", lambda d: _call(d, 2, 2, d.odd(34, 59), d.odd(66, 89), 32)),
    Case("head size 72", lambda d: _call(d, 1, 2, d.odd(20, 39), d.odd(40, 59), 72)),
    Case("head size 128", lambda d: _call(d, 1, 1, d.odd(20, 39), d.odd(40, 59), 128)),
    Case("causal", lambda d: _square(d, d.odd(70, 99), mask=CAUSAL)),
    Case(
        "causal, more keys than queries",
        lambda d: _call(d, 1, 1, d.odd(34, 59), 2 * d.integer(57, 63), 32, mask=CAUSAL),
    ),
    Case(
        "causal, more queries than keys",
        lambda d: _call(d, 1, 1, d.odd(80, 109), 2 * d.integer(17, 23), 32, mask=CAUSAL),
    ),
    Case("strided inputs", lambda d: _call(d, 2, 3, d.odd(20, 39), d.odd(40, 59), 16, layout=STRIDED)),
    # Not 32 columns: where keys lie by columns and values by rows, ptxas 12.8 breaks right kernels on Hopper there
    Case(FIRST, lambda d: _call(d, 1, 2, 37, 61, 16, mask={"scale": round(d.number(0.1, 0.13), 5)})),
    Case(AGAIN, lambda d: _call(d, 1, 2, 37, 61, 16, layout=STRIDED, mask={"scale": round(d.number(0.22, 0.27), 5)})),
    Case(
        "large scores",
        lambda d: _call(d, 1, 1, d.odd(20, 39), d.odd(60, 89), 32, offset=d.integer(400, 440), mask={"scale": 0.25}),
    ),
    Case(
        "very negative scores",
        lambda d: _call(d, 1, 1, d.odd(20, 39), d.odd(66, 89), 32, offset=-d.integer(480, 520), mask={"scale": 0.25}),
    ),
    # A query that sees one key has dq = 0, and any answer for it is rounding: the first of these sees 8 keys or more
    Case("fp16", lambda d: _call(d, 2, 2, d.odd(50, 59), d.odd(66, 79), 40, dtype=FP16, mask=CAUSAL)),
    Case("bf16", lambda d: _square(d, d.odd(400, 499), 1, 4, 128, dtype=BF16), tiers=ON_GPU),
    Case("bf16, many tiles", lambda d: _square(d, d.odd(1000, 1099), 1, 2, 64, dtype=BF16, mask=CAUSAL), tiers=ON_GPU),
)

TIMED = (
    Case("head size 64", lambda d: _square(d, 4096, d.sized(4), 16, 64, dtype=BF16)),
    Case("head size 128, causal", lambda d: _square(d, 4096, d.sized(4), 16, 128, dtype=BF16, mask=CAUSAL)),
)


def _both(forward, backward):
    """out and lse, then the gradients that belong to them."""

    def answer(v, *more):
        made = forward(v, *more)
        known = v | {"out": made["out"].to(v["q"].dtype), "lse": made["lse"].float()}
        return {name: made[name] for name in ("out", "lse")} | backward(known, *more)

    return answer


def _floor_s(v, ceilings) -> float:
    """2 products forward and 5 backward at the sustained rate; the bytes of these sizes take far less."""
    (batch, heads, n_q, head_size), n_k = v["q"].shape, v["k"].shape[2]
    operations = 14 * batch * heads * n_q * n_k * head_size * (0.5 if v["causal"] else 1.0)
    return operations / ceilings.products_per_s(DTYPE_NAMES[v["q"].dtype])


SPEED = Exercise(
    name="flash.speed",
    entry="attention_step",
    points=4,
    about="both passes as one function that a model can call",
    point=("odd lengths", "causal"),
    kind="kernel",
    cases=CASES,
    writes=WRITES,
    oracle=_both(forward_truth, backward_truth),
    precision=Precision(
        good=_both(forward_in_fp32, backward_in_fp32),
        good_is="fp32 throughout, p and ds in the type of the inputs",
        lower=lambda v: _both(forward_in_fp32, backward_in_fp32)(v, tf32_or_e4m3),
        lower_is=f"inputs {TF32_OR_E4M3_IS}",
        floor_ulps=FLOOR_ULPS,
        by_row=False,  # dq of a query that sees one key is 0, and any answer for it the rounding of its own order
    ),
    mistakes=MISTAKES,
    deterministic=True,
    where=wrong_rows,
    speed=Speed(
        points=10,
        cases=TIMED,
        floor_s=_floor_s,
        products=True,
        full=0.85,
        none=0.25,
        reference="course_lib.kernels.timed:attention_step",
    ),
    shows_not="speed, bf16, races between programs, and the rounding inside tensor cores",
)
