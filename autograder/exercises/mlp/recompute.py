"""mlp.recompute: linear, GELU, linear, with nothing kept for the way back but what was there before.

    mlp(x, w1, b1, w2, b2) -> y

x is (M, d), w1 (n, d), b1 (n,), w2 (d, n), b2 (d,), all of one type: fp32 or fp16, or bf16 on a GPU. The weights are
contiguous; the rows of x may lie apart. With GELU in its tanh form

    h = x w1ᵀ + b1        a = gelu(h)        y = a w2ᵀ + b2

y is new and of that type. It can be differentiated in all five arguments; with dy, the gradient of y,

    da = dy w2        dh = da gelu'(h)        dx = dh w1        dw1 = dhᵀ x        dw2 = dyᵀ a

db1 and db2 are the sums of the rows of dh and dy, and

    gelu'(h) = (1 + t) / 2 + h / 2 (1 - t^2) u'        t = tanh(u), u = sqrt(2 / pi) (h + 0.044715 h^3)

Arithmetic is in fp32, products of fp32 without TF32; what goes through memory between two products has the type of x.
Products and sums over rows may be the library's (`ALLOWED`); GELU and its slope are in kernels. Between the passes the
five arguments are kept, and beyond them at most an eighth of the bytes of h. Within a pass two matrices of the size of
h are alive at most, so a takes the place of h, and dh that of da; where M or n is small nobody looks. dy comes in any
strides, that of a sum with strides of 0, and stays as it is, as the five do. While the function runs, torch.empty gives
NaN.
"""

import torch

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Precision
from autograder.exercises.dtypes import BF16, DTYPE_NAMES, FP16, FP32
from autograder.exercises.mlp.block import NAMES, ROUGH_IS, honest, passes, rough
from autograder.exercises.mlp.gelu import CUBE, ROOT, slope
from autograder.exercises.mlp.recompute_mistakes import MISTAKES

# products, and sums: what a library does as well as anybody
ALLOWED = tuple(f"aten::{name}" for name in "mm addmm mv addmv matmul linear sum".split())


def most(v) -> dict[str, int]:
    """Six times what six products are given and make; the parts of GELU, each a product of single numbers, are more."""
    (rows, width), hidden = v["x"].shape, len(v["w1"])
    return {"products": 24 * (rows * width + hidden * width + rows * hidden)}


LARGE = 5.0  # spread of h in the case that is for it
OVERFLOWS = 10.0  # from h = 10.07 on e^(2u) is infinite in fp32


def _call(d: Draw, m: int, width: int, hidden: int, dtype=FP32, x_gap=0, dy_strides=None, of_a_sum=False, spread=1.5):
    """spread: of h, in which its bias takes a part. Where it is small, no h is so large that e^(2u) overflows."""
    dtype = d.type_of(dtype)
    while True:
        dy = d.normal(
            *(() if of_a_sum else (m, width)), dtype=dtype, mean=0.3, strides=None if of_a_sum else dy_strides
        )
        args = {
            "x": d.normal(m, width, dtype=dtype, strides=(width + x_gap, 1)),
            "w1": d.normal(hidden, width, dtype=dtype, std=spread * width**-0.5),
            "b1": d.normal(hidden, dtype=dtype, std=0.5 * spread),
            "w2": d.normal(width, hidden, dtype=dtype, std=hidden**-0.5),
            "b2": d.normal(width, dtype=dtype, std=0.5),
            "dy": dy,
        }
        h = torch.addmm(args["b1"].float(), args["x"].float(), args["w1"].float().mT)
        if spread >= LARGE or h.abs().max() < OVERFLOWS:
            break
    return Call(args, f"M = {m}, d = {width}, n = {hidden}, {DTYPE_NAMES[dtype]}")


def _sizes(d: Draw) -> tuple[int, int, int]:
    """M, d and n, all odd and all different."""
    return d.odd(17, 27), d.odd(9, 15), d.odd(34, 44)


def _wide(d: Draw) -> tuple[int, int]:
    """d and n, with enough columns that the errors of a bias's gradient say what is typical."""
    return d.odd(66, 76), d.odd(82, 94)


def _far_from_zero(d: Draw, m: int, width: int, hidden: int) -> Call:
    """Drawn until no entry of dh nearly cancels.

    Where there is one row, or one hidden column, it is all of a row of a gradient, and no honest rounding is small
    beside almost 0. Nor beside a slope that is little of its own parts: at h = -3 it is -0.012, and a tanh rounded
    once more moves it by 3e-5 of itself.
    """
    while True:
        call = _call(d, m, width, hidden, spread=1.0)
        there = passes(call.args, of_b1=lambda there: there)["db1"]
        dh, h = there["dh"], there["h"]
        parts = 1 + h.abs() * ROOT * (1 + 3 * CUBE * h.square())
        if dh.abs().min() > 0.02 * dh.square().mean().sqrt() and bool((slope(h).abs() > 0.02 * parts).all()):
            return call


def _large_h(d: Draw) -> Call:
    """Drawn until no hidden unit is negative in all rows: its gradient would be the rounding of its tanh."""
    sizes = _sizes(d)
    while True:
        call = _call(d, *sizes, spread=6.0)
        rows = passes(call.args)["dw1"].norm(dim=1)
        if rows.min() > 0.05 * rows.square().mean().sqrt():
            return call


def _transposed_gradient(d: Draw) -> Call:
    m, width, hidden = _sizes(d)
    return _call(d, m, width, hidden, dy_strides=(1, m))


def _strided_gradient(d: Draw) -> Call:
    m, width, hidden = _sizes(d)
    return _call(d, m, width, hidden, dy_strides=(width + d.integer(3, 9), 1))


CASES = (
    Case("odd sizes", lambda d: _call(d, d.odd(34, 44), *_wide(d))),
    Case("whole tiles", lambda d: _call(d, 32, 32, 32)),
    Case("one row", lambda d: _far_from_zero(d, 1, d.odd(17, 27), d.odd(34, 40))),
    Case("one column", lambda d: _call(d, d.odd(17, 27), 1, d.odd(34, 60))),
    Case("one hidden column", lambda d: _far_from_zero(d, d.odd(17, 27), d.odd(17, 27), 1)),
    Case("many rows", lambda d: _call(d, d.odd(134, 150), d.odd(5, 9), d.odd(9, 15))),
    Case("many rows, fp16", lambda d: _call(d, d.odd(7900, 8100), d.odd(17, 21), d.odd(5, 9), dtype=FP16)),
    Case("memory in passing", lambda d: _call(d, d.odd(66, 80), d.odd(5, 9), d.odd(130, 150))),
    Case("large h", _large_h),
    Case("strided x", lambda d: _call(d, *_sizes(d), x_gap=d.integer(3, 9))),
    Case("a gradient with strided rows", _strided_gradient),
    Case("a gradient that is transposed", _transposed_gradient),
    Case("the gradient of a sum", lambda d: _call(d, *_sizes(d), of_a_sum=True)),
    Case("fp16", lambda d: _call(d, d.odd(17, 27), *_wide(d), dtype=FP16)),
    Case("bf16", lambda d: _call(d, d.odd(200, 300), 72, 272, dtype=BF16), tiers=ON_GPU),
    Case("large", lambda d: _call(d, d.odd(500, 600), 1152, 4304, dtype=BF16), tiers=ON_GPU),
)


RECOMPUTE = Exercise(
    name="mlp.recompute",
    entry="mlp",
    points=7,
    about="a backward pass that keeps the inputs only, and makes the rest again in two matrices of the size of h",
    point=("odd sizes", "memory in passing"),
    kind="kernel",
    cases=CASES,
    returns=NAMES,
    oracle=passes,
    precision=Precision(
        good=honest,
        good_is="fp32 arithmetic, the type of x between products",
        lower=rough,
        lower_is=ROUGH_IS,
        floor_ulps=0.5,
    ),
    mistakes=MISTAKES,
    probe="autograder.inside.probes.recomputing:differentiated",
    allowed=ALLOWED,
    most=most,
    shows_not="speed, bf16, and races between programs",
)
