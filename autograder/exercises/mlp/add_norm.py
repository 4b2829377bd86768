"""mlp.add_norm: the residual added and the sum normalised, in one pass over memory each way.

    add_norm(x, residual, weight, bias, eps, in_place) -> (y, s)

x and residual are (R, N) of one type: fp32 or fp16, or bf16 on a GPU; their rows may lie apart, their columns are
adjacent, and N is at most 4096. weight and bias are (N,) in fp32, contiguous.

    s = x + residual        y = (s - mean) rstd weight + bias        rstd = 1 / sqrt(var + eps)

with mean and var = mean((s - mean)^2) of each row. y and s are of the type of x; statistics are in fp32 (those of s
before it is rounded or after, both are right). in_place: y lies in the memory of x and s in that of residual, whose old
values are then gone, of which autograd is told (`ctx.mark_dirty`); otherwise both are new, and x and residual stay as
they are.

Both results can be differentiated in x, residual, weight and bias. With g = dy weight and h = (s - mean) rstd

    d = rstd (g - mean(g) - h mean(g h)) + ds        for x and for residual
    dweight = sum of dy h over rows                  dbias = sum of dy over rows        in fp32

dy and ds arrive in any strides, those of a sum with strides of 0, and stay as they are. dweight and dbias are the same
bits on every run: no two programs add to one number. All arithmetic is in kernels, in both passes. While the function
runs, torch.empty gives NaN.
"""

import torch

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Precision
from autograder.exercises.dtypes import BF16, DTYPE_NAMES, FP16, FP32
from autograder.exercises.mlp.add_norm_mistakes import MISTAKES
from autograder.exercises.mlp.norm import NAMES, ROUGH_IS, in_types, made, rough

STEP = {FP16: 1 / 64, BF16: 1 / 8}  # x and residual are so coarse that their sum is a number of their type


def _values(d: Draw, rows: int, columns: int, dtype, mean=0.0, std=1.0) -> torch.Tensor:
    x = d.normal(rows, columns, mean=mean, std=std)
    step = STEP.get(dtype)
    return (x / step).round().mul(step).clamp(-8, 8) if step else x


def _call(
    d: Draw, rows: int, columns: int, dtype=FP32, eps=None, in_place=False, x=None, residual=None, gaps=(0, 0),
    dy_gap=None, dy_mean=0.5, of_a_sum=False, used=True,
) -> Call:  # fmt: skip
    """gaps: between rows of x and of residual; dy_gap: of dy and ds, or "columns" where these are transposed."""
    dtype = d.type_of(dtype)
    eps = eps or d.choice([1e-5, 1e-6, 1e-3])
    x = _values(d, rows, columns, dtype, mean=0.5, std=1.5) if x is None else x
    residual = _values(d, rows, columns, dtype, mean=0.5, std=1.5) if residual is None else residual
    strides = (1, rows) if dy_gap == "columns" else (columns + (dy_gap or 0), 1)
    shape, strides = ((), None) if of_a_sum else ((rows, columns), strides)
    args = {
        "x": d.lay_out(x.to(dtype), (columns + gaps[0], 1)),
        "residual": d.lay_out(residual.to(dtype), (columns + gaps[1], 1)),
        "weight": d.normal(columns, mean=1.0, std=0.5),
        "bias": d.normal(columns, std=0.5),
        "eps": eps,
        "in_place": in_place,
        "dy": d.normal(*shape, mean=dy_mean, dtype=dtype, strides=strides),
        "ds": d.normal(*shape, mean=-0.3, dtype=dtype, strides=strides) if used else None,
    }
    said = f"{rows} row{'s' * (rows != 1)} of {columns}, {DTYPE_NAMES[dtype]}, eps {eps:g}"
    return Call(args, said + ", in place" * in_place + ", s not used further" * (not used))


def _far_from_zero(d: Draw) -> Call:
    """Sums of 32 numbers near 64, on a grid: exact in fp32, and so is their mean; their squares are not."""
    x = 64.0 + (d.normal(9, 32) * 256).round() / 256
    return _call(d, 9, 32, x=x, residual=torch.zeros(9, 32, device=d.device), eps=1e-4)


def _hardly_varying(d: Draw) -> Call:
    """Rows that vary by a thousandth: eps is as large as their variance."""
    rows, columns = d.odd(7, 11), d.odd(40, 60)
    small = d.normal(rows, columns, std=1e-3)
    return _call(d, rows, columns, x=small, residual=torch.zeros_like(small), eps=1e-6)


def _constant_rows(d: Draw) -> Call:
    rows, columns = d.odd(7, 11), 32
    x = d.integers(rows, 1, low=-3, high=3, dtype=torch.int64).float().expand(rows, columns)
    return _call(d, rows, columns, x=x, residual=torch.ones(rows, columns, device=d.device))


CASES = (
    Case("odd sizes", lambda d: _call(d, d.odd(9, 15), d.odd(66, 100))),
    Case("a power of two", lambda d: _call(d, 16, 64)),
    Case("one row", lambda d: _call(d, 1, d.odd(66, 100))),
    # A column's own deviation is 0, so rstd = 1 / sqrt(eps) is a factor on nothing but roundings: not too large a one.
    Case("one column", lambda d: _call(d, d.odd(9, 15), 1, eps=0.1)),
    Case("two rows", lambda d: _call(d, 2, d.odd(34, 60))),
    Case("width 72", lambda d: _call(d, d.odd(9, 15), 72)),
    Case("many rows", lambda d: _call(d, d.odd(66, 80), d.odd(17, 31))),
    Case("wide rows", lambda d: _call(d, d.odd(5, 9), d.odd(1030, 1300))),
    Case("large eps", lambda d: _call(d, d.odd(9, 15), d.odd(34, 60), eps=d.choice([0.5, 1.0, 2.0]))),
    Case("rows that hardly vary", _hardly_varying),
    Case("constant rows", _constant_rows),
    Case("a large mean", _far_from_zero),
    Case("strided x", lambda d: _call(d, d.odd(9, 15), d.odd(34, 60), gaps=(d.integer(3, 9), 0))),
    Case("strided residual", lambda d: _call(d, d.odd(9, 15), d.odd(34, 60), gaps=(0, d.integer(3, 9)))),
    Case("strided gradients", lambda d: _call(d, d.odd(9, 15), d.odd(34, 60), dy_gap=d.integer(3, 9))),
    Case("gradients with columns apart", lambda d: _call(d, d.odd(9, 15), d.odd(34, 60), dy_gap="columns")),
    Case("the gradient of a sum", lambda d: _call(d, d.odd(9, 15), d.odd(34, 60), of_a_sum=True)),
    Case("s not used further", lambda d: _call(d, d.odd(9, 15), d.odd(34, 60), used=False)),
    Case("in place", lambda d: _call(d, d.odd(9, 15), d.odd(34, 60), in_place=True)),
    Case("in place, strided", lambda d: _call(d, d.odd(9, 15), d.odd(34, 60), in_place=True, gaps=(5, 8))),
    Case("fp16", lambda d: _call(d, d.odd(9, 15), d.odd(66, 100), dtype=FP16)),
    Case("fp16, many rows", lambda d: _call(d, d.odd(66, 80), d.odd(17, 31), dtype=FP16, in_place=True)),
    Case("bf16", lambda d: _call(d, d.odd(300, 400), 1152, dtype=BF16), tiers=ON_GPU),
    Case("bf16, many rows", lambda d: _call(d, d.odd(5000, 6000), 768, dtype=BF16, in_place=True), tiers=ON_GPU),
    Case("rows of 4096", lambda d: _call(d, d.odd(300, 400), 4096), tiers=ON_GPU),
)


ADD_NORM = Exercise(
    name="mlp.add_norm",
    entry="add_norm",
    points=9,
    about="a norm whose statistics stay exact, and all of its gradients, in one pass each",
    point=("a large mean", "rows that hardly vary", "odd sizes"),
    kind="kernel",
    cases=CASES,
    returns=NAMES,
    oracle=made,
    precision=Precision(
        good=lambda v: in_types(v, made(v, torch.float32)),
        good_is="fp32 throughout",
        lower=lambda v: in_types(v, rough(v)),
        lower_is=ROUGH_IS,
        floor_ulps=0.5,
    ),
    mistakes=MISTAKES,
    probe="autograder.inside.probes.norming:differentiated",
    deterministic=True,
    shows_not="speed, bf16, races between programs, and whether sums are the same bits on every run",
)
