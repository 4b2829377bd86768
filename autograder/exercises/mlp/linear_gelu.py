"""mlp.linear_gelu: a product with bias and GELU at its end, on the accumulator, before anything is rounded.

    linear_gelu(x, w, bias, out)

x is (M, K) and w (N, K), as nn.Linear keeps it, of one type: fp32 or fp16, or bf16 on a GPU; both in any strides, so
either may be a transposed view. bias is (N,) of that type, contiguous, or None. out is (M, N) of that type or in fp32;
its rows may lie apart, its columns are adjacent. M and N are 1 or more, K 0 or more: an empty sum is 0.

    h = x wᵀ + bias        out = h / 2 (1 + tanh(sqrt(2 / pi) (h + 0.044715 h^3)))

in fp32 (with fp32 inputs products are not rounded to TF32), rounded once, to the type of out. h may be as large as 60.
All arithmetic is in kernels.
"""

import torch

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Precision
from autograder.exercises.dtypes import BF16, DTYPE_NAMES, FP16, FP32, next_format_down
from autograder.exercises.mlp.gelu import gelu
from autograder.exercises.mlp.linear_gelu_mistakes import MISTAKES, before_gelu, wrong_pre_activations
from autograder.exercises.strides import far_apart


def _call(
    d: Draw, m: int, n: int, k: int, dtype=FP32, to=None, spread=1.5, biased=True, x_strides=None, w_strides=None,
    out_gap=0,
) -> Call:  # fmt: skip
    """spread: of h, in which the bias takes a part."""
    dtype = d.type_of(dtype)
    x = d.normal(m, k, dtype=dtype, strides=x_strides)
    w = d.normal(n, k, dtype=dtype, std=spread * max(k, 1) ** -0.5, strides=w_strides)
    bias = d.normal(n, dtype=dtype, std=0.5 * spread) if biased else None
    out = d.empty(m, n, dtype=to or dtype, strides=(n + out_gap, 1))
    sizes = f"M = {m}, N = {n}, K = {k}, {DTYPE_NAMES[dtype]}"
    sizes += (f" to {DTYPE_NAMES[to]}" if to else "") + ", no bias" * (not biased)
    if x_strides or w_strides or out_gap:
        sizes += f", strides {x.stride()}, {w.stride()}, {out.stride()}"
    return Call({"x": x, "w": w, "bias": bias, "out": out}, sizes)


def _sizes(d: Draw) -> tuple[int, int, int]:
    """M, N and K, all odd and all different."""
    return d.odd(34, 44), d.odd(66, 80), d.odd(92, 120)


def _transposed(d: Draw, which: str) -> Call:
    m, n, k = _sizes(d)
    return _call(d, m, n, k, **{f"{which}_strides": (1, m if which == "x" else n)})


def _slices(d: Draw) -> Call:
    """Rows of larger matrices."""
    m, n, k = _sizes(d)
    return _call(d, m, n, k, x_strides=(k + d.integer(3, 9), 1), w_strides=(k + d.integer(11, 19), 1))


def _second_columns(d: Draw) -> Call:
    m, n, k = _sizes(d)
    return _call(d, m, n, k, x_strides=(2 * k, 2), w_strides=(3 * k, 3))


def _large_partial_sums(d: Draw) -> Call:
    """The first half of K adds up to some hundreds, the second half takes it away again; exact in fp32, on a grid.

    In every second column it is the other way round: no row has nothing but h far below 0, whose GELU almost vanishes.
    """
    m, n, k = d.odd(20, 30), d.odd(34, 44), 256
    made = _call(d, m, n, k, dtype=FP16, to=FP32)
    made.args["x"].copy_((d.normal(m, k, mean=8.0) * 8).round() / 8)
    half = torch.tensor([0.5] * (k // 2) + [-0.5] * (k // 2), device=d.device)
    sign = 1 - 2 * (torch.arange(n, device=d.device) % 2)
    w = (d.normal(n, k, std=0.02) * 64).round() / 64 + sign[:, None] * half
    made.args["w"].copy_(w)
    return made


def _far_below_zero(d: Draw, dtype) -> Call:
    """h near -3, where GELU magnifies a relative error eightfold: a rounding of h weighs more than that of the result.

    Near -4 results of fp16 would be subnormal, and 1 + tanh a difference of two numbers near 1.
    """
    made = _call(d, *_sizes(d), dtype=dtype, spread=0.2)
    made.args["bias"].sub_(3.0)
    return Call(made.args, f"{made.sizes}, h near -3")


def _past_int32(d: Draw) -> Call:
    """The third row of x begins past 2^31 elements. 4.3 GB, nearly all of it gap."""
    args = _call(d, 3, d.odd(40, 60), 64, dtype=FP16).args
    args["x"] = far_apart(args["x"])
    return Call(args, f"M = 3, K = 64, fp16, row stride of x {args['x'].stride(0)}")


CASES = (
    Case("odd sizes", lambda d: _call(d, *_sizes(d))),
    Case("whole tiles", lambda d: _call(d, 64, 128, 64)),
    Case("one row", lambda d: _call(d, 1, d.odd(40, 80), d.odd(34, 60))),
    Case("one column", lambda d: _call(d, d.odd(40, 80), 1, d.odd(34, 60))),
    Case("K shorter than any block", lambda d: _call(d, d.odd(20, 40), d.odd(42, 60), d.integer(1, 15))),
    Case("K is zero", lambda d: _call(d, d.odd(20, 40), d.odd(42, 60), 0)),
    Case("a long K", lambda d: _call(d, d.odd(17, 24), d.odd(17, 30), 16 * d.integer(26, 40) + 5)),
    Case("wide", lambda d: _call(d, d.integer(5, 20), d.odd(200, 250), d.integer(17, 30))),
    Case("tall", lambda d: _call(d, d.odd(200, 250), d.integer(5, 20), d.integer(17, 30))),
    Case("no bias", lambda d: _call(d, *_sizes(d), biased=False)),
    Case("large h", lambda d: _call(d, *_sizes(d), spread=12.0)),
    Case("transposed w", lambda d: _transposed(d, "w")),
    Case("transposed x", lambda d: _transposed(d, "x")),
    Case("strided rows", _slices),
    Case("every second and third column", _second_columns),
    Case("strided output", lambda d: _call(d, *_sizes(d), out_gap=d.integer(3, 30))),
    Case("fp16", lambda d: _call(d, *_sizes(d), dtype=FP16)),
    Case("fp16 in, fp32 out", lambda d: _call(d, *_sizes(d), dtype=FP16, to=FP32)),
    Case("large partial sums", _large_partial_sums),
    Case("fp16, h far below 0", lambda d: _far_below_zero(d, FP16)),
    Case("bf16", lambda d: _call(d, *_sizes(d), dtype=BF16), tiers=ON_GPU),
    Case("bf16 in, fp32 out", lambda d: _call(d, *_sizes(d), dtype=BF16, to=FP32), tiers=ON_GPU),
    Case("bf16, h far below 0", lambda d: _far_below_zero(d, BF16), tiers=ON_GPU),
    Case("large", lambda d: _call(d, d.odd(1000, 1200), d.odd(1300, 1500), 1152, dtype=BF16), tiers=ON_GPU),
    Case("offsets past 2^31", _past_int32, tiers=ON_GPU, live=False, share=0.5),
)


def _rough(v) -> dict:
    """In the next format down: fp32 inputs, and with them the bias, all there is where K is 0; else h, in x's type."""
    if v["x"].dtype == torch.float32:
        inputs = {name: next_format_down(v[name]) for name in ("x", "w", "bias") if v[name] is not None}
        return {"out": gelu(before_gelu(v | inputs, torch.float32))}
    return {"out": gelu(before_gelu(v, torch.float32).to(v["x"].dtype).float())}


LINEAR_GELU = Exercise(
    name="mlp.linear_gelu",
    entry="linear_gelu",
    points=7,
    about="a product whose sum stays in fp32 until GELU has been applied",
    point=("fp16 in, fp32 out", "large partial sums", "fp16, h far below 0"),
    kind="kernel",
    cases=CASES,
    writes=("out",),
    oracle=lambda v: {"out": gelu(before_gelu(v))},
    precision=Precision(
        good=lambda v: {"out": gelu(before_gelu(v, torch.float32))},
        good_is="fp32 throughout",
        lower=_rough,
        lower_is="fp32 inputs and bias in the next format down; of two-byte inputs h rounded to their type",
        floor_ulps=0.5,  # what one rounding may cost
    ),
    mistakes=MISTAKES,
    where=wrong_pre_activations,
    shows_not="speed, bf16, the rounding inside tensor cores, and offsets past 2^31",
)
