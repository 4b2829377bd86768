"""roofline.matmul: tiles, an accumulator, and strides that mean what they say."""

import torch

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Precision, Speed
from autograder.exercises.dtypes import DTYPE_NAMES, FP16, FP32, NEXT_DOWN_IS, next_format_down
from autograder.exercises.roofline.matmul_mistakes import MISTAKES
from autograder.exercises.strides import far_apart


def _call(draw: Draw, a, b, a_strides=None, b_strides=None, out_gap=0, out_dtype=None) -> Call:
    """Lay out a (M, K) and b (K, N); the rows of the output are N + out_gap apart."""
    (m, k), n = a.shape, b.shape[1]
    a, b = draw.lay_out(a, a_strides), draw.lay_out(b, b_strides)
    out = draw.empty(m, n, dtype=out_dtype or a.dtype, strides=(n + out_gap, 1))
    sizes = f"M = {m}, N = {n}, K = {k}, {DTYPE_NAMES[a.dtype]}"
    if out.dtype != a.dtype:
        sizes += f" to {DTYPE_NAMES[out.dtype]}"
    if a_strides or b_strides or out_gap:
        sizes += f", strides {a.stride()}, {b.stride()}, {out.stride()}"
    return Call({"a": a, "b": b, "out": out}, sizes)


def _normal(draw: Draw, m: int, n: int, k: int, dtype=FP32, scale=1.0, **layout) -> Call:
    a, b = draw.normal(m, k, dtype=dtype, std=scale), draw.normal(k, n, dtype=dtype)
    return _call(draw, a, b, **layout)


def _sizes(draw: Draw) -> tuple[int, int, int]:
    """M, N and K, all odd and all different."""
    return draw.odd(34, 60), draw.odd(62, 90), draw.odd(92, 130)


def _transposed_a(draw: Draw) -> Call:
    m, n, k = _sizes(draw)
    return _normal(draw, m, n, k, a_strides=(1, m))


def _transposed_b(draw: Draw) -> Call:
    m, n, k = _sizes(draw)
    return _normal(draw, m, n, k, b_strides=(1, k))


def _strided_rows(draw: Draw) -> Call:
    m, n, k = _sizes(draw)
    return _normal(draw, m, n, k, a_strides=(k + draw.integer(3, 9), 1), b_strides=(n + draw.integer(11, 19), 1))


def _second_columns(draw: Draw) -> Call:
    m, n, k = _sizes(draw)
    return _normal(draw, m, n, k, a_strides=(2 * k, 2), b_strides=(3 * n, 3))


def _large_partial_sums(draw: Draw) -> Call:
    """The first half of K adds up to 64 times the result, the second half takes it away again."""
    m, n, k = draw.integer(20, 40), draw.integer(20, 40), 512
    a = draw.normal(m, k, mean=8.0).to(FP16)
    b = draw.normal(k, n).add(torch.tensor([[8.0]] * (k // 2) + [[-8.0]] * (k // 2), device=draw.device)).to(FP16)
    return _call(draw, a, b)


def _past_int32(draw: Draw) -> Call:
    """The third row of a begins past 2^31 elements. 4.3 GB, nearly all of it gap."""
    n, k = draw.integer(40, 60), draw.integer(40, 60)
    a = far_apart(draw.normal(3, k, dtype=FP16))
    out = draw.empty(3, n, dtype=FP16)
    sizes = f"M = 3, N = {n}, K = {k}, fp16, row stride of a {a.stride(0)}"
    return Call({"a": a, "b": draw.normal(k, n, dtype=FP16), "out": out}, sizes)


# 255 rows of the widest output still end inside the fence, so that a store without a mask is seen and harms nothing.
CASES = (
    Case("odd sizes", lambda d: _normal(d, *_sizes(d))),
    Case("multiples of any block", lambda d: _normal(d, 128, 128, 128)),
    Case("one element", lambda d: _normal(d, 1, 1, 1)),
    Case("one row", lambda d: _normal(d, 1, d.odd(40, 80), d.odd(34, 60))),
    Case("one column", lambda d: _normal(d, d.odd(40, 80), 1, d.odd(34, 60))),
    Case("K shorter than any block", lambda d: _normal(d, d.odd(20, 40), d.odd(42, 60), d.integer(1, 15))),
    Case("K is zero", lambda d: _normal(d, d.integer(3, 20), d.integer(3, 20), 0)),
    Case("a long K", lambda d: _normal(d, d.integer(17, 40), d.integer(17, 40), 16 * d.integer(36, 50) + 5)),
    Case("wide", lambda d: _normal(d, d.integer(5, 20), d.odd(200, 250), d.integer(17, 30))),
    Case("tall", lambda d: _normal(d, d.odd(290, 400), d.integer(5, 20), d.integer(17, 30))),
    Case("many tiles", lambda d: _normal(d, d.odd(262, 310), d.odd(200, 250), d.integer(17, 30))),
    Case("transposed a", _transposed_a),
    Case("transposed b", _transposed_b),
    Case("strided rows", _strided_rows),
    Case("every second and third column", _second_columns),
    Case("strided output", lambda d: _normal(d, *_sizes(d), out_gap=d.integer(3, 30))),
    Case("values past 65504", lambda d: _normal(d, *_sizes(d), scale=1e6)),
    Case("fp16", lambda d: _normal(d, *_sizes(d), dtype=FP16)),
    Case("fp16 in, fp32 out", lambda d: _normal(d, *_sizes(d), dtype=FP16, out_dtype=FP32)),
    Case("large partial sums", _large_partial_sums),
    Case("bf16", lambda d: _normal(d, *_sizes(d), dtype=torch.bfloat16), tiers=ON_GPU),
    Case("large", lambda d: _normal(d, d.odd(1100, 1300), d.odd(200, 250), 4096, FP16), tiers=ON_GPU),
    Case("large fp32", lambda d: _normal(d, d.odd(700, 800), d.odd(200, 250), 1001), tiers=ON_GPU),
    Case("offsets past 2^31", _past_int32, tiers=ON_GPU, live=False, share=0.5),
)


def _floor_s(v, ceilings) -> float:
    """2 M N K operations at the rate this device sustains; the bytes of these sizes take far less."""
    (m, k), n = v["a"].shape, v["b"].shape[1]
    return 2 * m * n * k / ceilings.products_per_s(DTYPE_NAMES[v["a"].dtype])


MATMUL = Exercise(
    name="roofline.matmul",
    entry="matmul",
    points=10,
    about="tiles of a product, summed in fp32 along all of K",
    point=("a long K", "many tiles", "large partial sums"),
    kind="kernel",
    cases=CASES,
    writes=("out",),
    oracle=lambda v: {"out": v["a"].double() @ v["b"].double()},
    precision=Precision(
        good=lambda v: {"out": v["a"].float() @ v["b"].float()},
        good_is="fp32 throughout",
        lower=lambda v: {"out": next_format_down(v["a"]).float() @ next_format_down(v["b"]).float()},
        lower_is=f"inputs {NEXT_DOWN_IS}",
    ),
    mistakes=MISTAKES,
    speed=Speed(
        points=4,
        cases=(
            Case("square", lambda d: _normal(d, d.sized(4096), 4096, 4096, FP16)),
            Case("oblong", lambda d: _normal(d, d.sized(8192), 2048, 4096, FP16)),
        ),
        floor_s=_floor_s,
        products=True,
        full=0.8,
        none=0.2,
        reference="course_lib.kernels.matmul:matmul",
    ),
    shows_not="speed, bf16, the rounding inside tensor cores, and offsets past 2^31",
)
