"""mlp.dropout: elements dropped by a rule instead of a mask.

    dropout(x, p, seed) -> y

x has any shape and any strides; it is fp32 or fp16, or bf16 on a GPU. p is a number with 0 <= p < 1, seed an integer
from 0 to 2^63 - 1. With i the row-major index of an element in the shape of x, whatever its strides, and number(i) that
of the four numbers of tl.rand4x(seed, i // 4) which i % 4 counts, from 0 on,

    y = x / (1 - p) where number(i) >= p, and 0 elsewhere, also where x is infinite or NaN

computed in fp32 (x times 1 / (1 - p) is as good) and converted once; y is a new tensor of the shape and type of x. It
can be differentiated in x: the gradient passes where the element did, and is divided by 1 - p likewise. Gradients
arrive in any strides, those of a sum with strides of 0, and stay as they are.

The same seed gives the same elements, another seed others, whatever the block size. Between the passes no more than 64
bytes are kept: neither x nor a mask. The function may be called again before the gradient is asked for. All arithmetic
is in kernels, in both passes. While the function runs, torch.empty gives NaN.
"""

import torch

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Precision
from autograder.exercises.dtypes import BF16, DTYPE_NAMES, FP16, FP32, NEXT_DOWN_IS, next_format_down
from autograder.exercises.mlp.dropout_mistakes import MISTAKES, dropped
from autograder.exercises.mlp.philox import numbers_of_four
from autograder.exercises.strides import far_apart


def _call(
    d: Draw, *shape: int, dtype=FP32, p=None, seed=None, strides=None, dy_strides=None, of_a_sum=False, change=None
) -> Call:
    """change: of the values of x; strides, dy_strides: in elements."""
    dtype = d.type_of(dtype)
    x = d.normal(*shape, dtype=dtype, mean=0.3)
    x = change(x) if change else x
    p = d.choice([0.15, 0.25, 0.4, 0.65]) if p is None else p
    seed = d.integer(2**33, 2**62) if seed is None else seed
    dy = d.normal(*(() if of_a_sum else shape), dtype=dtype, strides=None if of_a_sum else dy_strides, mean=0.2)
    args = {"x": d.lay_out(x, strides), "p": p, "seed": seed, "other_seed": d.integer(1, 2**62), "dy": dy}
    said = " x ".join(map(str, shape)) + f", {DTYPE_NAMES[dtype]}, p {p:g}"
    return Call(args, said + (f", strides {strides}" if strides else ""))


def _some_zero(x: torch.Tensor) -> torch.Tensor:
    flat = x.flatten()
    flat[::3] = 0.0
    return flat.view(x.shape)


def _some_infinite(x: torch.Tensor) -> torch.Tensor:
    flat = x.flatten()
    flat[::5], flat[1::7], flat[2::11] = torch.inf, -torch.inf, torch.nan
    return flat.view(x.shape)


def _away_from_zero(x: torch.Tensor) -> torch.Tensor:
    return x.abs() + 0.5


def _p_is_a_number(d: Draw, low: float, high: float, count: int, **options) -> Call:
    """p is the number of one of the elements, between low and high: this element stays."""
    while True:
        seed = d.integer(2**33, 2**62)
        drawn = numbers_of_four(seed, torch.arange(count))
        between = drawn[(drawn > low) & (drawn < high)]
        if len(between):
            return _call(d, count, p=between[0].item(), seed=seed, change=_away_from_zero, **options)


def _factor_past_fp16(d: Draw) -> Call:
    """1 / (1 - p) is more than fp16 holds, and the results are not. p is just below the number of an element."""
    made = _p_is_a_number(d, 0.999985, 0.999998, d.odd(4200, 5000), dtype=FP16)
    made.args["p"] -= 2.0**-24
    made.args["x"].mul_(1e-3)
    made.args["dy"].mul_(1e-3)
    return made


def _transposed(d: Draw, **options) -> Call:
    rows, columns = d.odd(9, 13), d.odd(40, 50)
    return _call(d, rows, columns, strides=(1, rows), **options)


def _gradient_transposed(d: Draw) -> Call:
    rows, columns = d.odd(9, 13), d.odd(40, 50)
    return _call(d, rows, columns, dy_strides=(1, rows))


def _strided_rows(d: Draw, of_dy: bool) -> Call:
    rows, columns = d.odd(9, 13), d.odd(40, 50)
    strides = {"dy_strides" if of_dy else "strides": (columns + d.integer(3, 9), 1)}
    return _call(d, rows, columns, **strides)


def _heads(d: Draw) -> Call:
    """(B, H, S) laid out as (B, S, H)."""
    batch, heads, length = 3, d.odd(4, 8), d.odd(20, 30)
    return _call(d, batch, heads, length, strides=(heads * length, 1, heads))


def _past_int32(d: Draw) -> Call:
    """The third row of x begins past 2^31 elements. 4.3 GB, nearly all of it gap."""
    made = _call(d, 3, d.odd(300, 400), dtype=FP16)
    made.args["x"] = far_apart(made.args["x"])
    return made


CASES = (
    Case("one element", lambda d: _call(d, 1, p=0.5)),
    Case("a vector", lambda d: _call(d, d.odd(300, 400))),
    Case("whole blocks", lambda d: _call(d, 1024)),
    Case("several blocks", lambda d: _call(d, d.odd(4200, 5000))),
    Case("a matrix", lambda d: _call(d, d.odd(9, 13), d.odd(40, 50))),
    Case("three dimensions", lambda d: _call(d, 3, d.odd(5, 9), d.odd(20, 30))),
    Case("transposed", _transposed),
    Case("strided rows", lambda d: _strided_rows(d, of_dy=False)),
    Case("every second element", lambda d: _call(d, d.odd(300, 400), strides=(2,))),
    Case("heads and rows exchanged", _heads),
    Case("a gradient that is transposed", _gradient_transposed),
    Case("a gradient with strided rows", lambda d: _strided_rows(d, of_dy=True)),
    Case("the gradient of a sum", lambda d: _call(d, d.odd(9, 13), d.odd(40, 50), of_a_sum=True)),
    Case("nothing is dropped", lambda d: _call(d, d.odd(300, 400), p=0.0)),
    Case("few are dropped", lambda d: _call(d, d.odd(400, 500), p=0.02)),
    Case("most are dropped", lambda d: _call(d, d.odd(400, 500), p=0.9)),
    Case("a number that is p", lambda d: _p_is_a_number(d, 0.1, 0.7, d.odd(300, 400))),
    Case("a seed of 31 bits", lambda d: _call(d, d.odd(300, 400), seed=d.integer(2**29, 2**31 - 1))),
    Case("a seed of 32 bits", lambda d: _call(d, d.odd(300, 400), seed=d.integer(2**31, 2**32 - 1))),
    Case("the seed 0", lambda d: _call(d, d.odd(300, 400), seed=0)),
    Case("zeros", lambda d: _call(d, d.odd(9, 13), d.odd(40, 50), change=_some_zero)),
    Case("infinities and NaN", lambda d: _call(d, d.odd(300, 400), change=_some_infinite)),
    Case("fp16", lambda d: _call(d, d.odd(9, 13), d.odd(40, 50), dtype=FP16)),
    Case("fp16, transposed", lambda d: _transposed(d, dtype=FP16)),
    Case("fp16, hardly any stays", _factor_past_fp16),
    Case("bf16", lambda d: _call(d, d.odd(300, 400), 1152, dtype=BF16), tiers=ON_GPU),
    Case("large", lambda d: _call(d, d.odd(1000, 1200), 4304, dtype=BF16), tiers=ON_GPU),
    Case("offsets past 2^31", _past_int32, tiers=ON_GPU, live=False, share=0.5),
)


def _in_types(v, results: dict) -> dict:
    return {name: r.to(v["x"].dtype) for name, r in results.items()}


DROPOUT = Exercise(
    name="mlp.dropout",
    entry="dropout",
    points=5,
    about="a mask that is never stored: all four numbers of a call, the same in both passes",
    point=("a vector", "several blocks", "a matrix"),
    kind="kernel",
    cases=CASES,
    returns=("y", "dx", "y_of_other_seed"),
    oracle=dropped,
    precision=Precision(
        good=lambda v: _in_types(v, dropped(v)),
        good_is="exact, rounded once",
        lower=lambda v: _in_types(v, dropped(v | {"x": next_format_down(v["x"]), "dy": next_format_down(v["dy"])})),
        lower_is=f"x and its gradient {NEXT_DOWN_IS}",
    ),
    mistakes=MISTAKES,
    probe="autograder.inside.probes.dropping:differentiated",
    shows_not="speed, bf16, races between programs, and offsets past 2^31",
)
