"""Every operation the lessons use, against torch: on the tier at hand, so the same table proves both.

In the interpreter it shows that no operation is silently wrong; on a GPU it shows that the truth the
interpreter is held to is what the hardware does.
"""

import linecache
import math
from functools import reduce

import pytest
import torch

from course_lib.device import DEVICE, TIER

# isort: split
import triton
import triton.language as tl

F32, F16, BF16, F64 = torch.float32, torch.float16, torch.bfloat16, torch.float64
I8, I16, I32, I64, U8 = torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8
interpreter_only = pytest.mark.skipif(TIER != "interpreter", reason="what the interpreter refuses")
_made = {}


def kernel(text):
    """A @triton.jit kernel from its text; Triton reads the source through linecache."""
    if text not in _made:
        name = f"<kernel {len(_made)}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        space = {"triton": triton, "tl": tl, "__name__": __name__}
        exec(compile(text, name, "exec"), space)
        _made[text] = triton.jit(space["kernel"])
    return _made[text]


def elementwise(expression, *inputs, out=None, n=None):
    """Run `expression` of x, y, z over a block; lanes from n on are masked."""
    names = "xyz"[: len(inputs)]
    n = inputs[0].numel() if n is None else n
    pointers = ", ".join(f"{name}_ptr" for name in names)
    loads = "\n".join(f"    {name} = tl.load({name}_ptr + offs, mask=mask, other=0)" for name in names)
    text = (
        f"def kernel(out_ptr, {pointers}, n, BLOCK: tl.constexpr):\n"
        f"    offs = tl.arange(0, BLOCK)\n    mask = offs < n\n{loads}\n"
        f"    tl.store(out_ptr + offs, {expression}, mask=mask)\n"
    )
    result = torch.zeros(inputs[0].numel(), dtype=out or inputs[0].dtype, device=DEVICE)
    block = triton.next_power_of_2(inputs[0].numel())
    kernel(text)[(1,)](result, *[one.to(DEVICE) for one in inputs], n, BLOCK=block)
    return result.cpu()


def reduction(expression, x, out_shape, out=None):
    """Run `expression` of a 2-D block x, write `out_shape` elements."""
    grid = "tl.arange(0, OUT)[:, None] * C + tl.arange(0, C)[None, :]"
    offs = ["0", "tl.arange(0, OUT)", grid][len(out_shape)]
    text = (
        "def kernel(out_ptr, x_ptr, R: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr):\n"
        "    x = tl.load(x_ptr + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :])\n"
        f"    tl.store(out_ptr + {offs}, {expression})\n"
    )
    result = torch.zeros(out_shape, dtype=out or x.dtype, device=DEVICE)
    kernel(text)[(1,)](result, x.to(DEVICE), R=x.shape[0], C=x.shape[1], OUT=out_shape[0] if out_shape else 1)
    return result.cpu()


def normal(*shape, dtype=F32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def same(got, want, rtol=0.0, atol=0.0):
    torch.testing.assert_close(got, want.to(got.dtype), rtol=rtol, atol=atol, equal_nan=True)


SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 65504.0, 65520.0, 1e-8, 3e38])
FLOATS = torch.cat([normal(117), SPECIAL])
POSITIVE = normal(128).abs() + 1e-3

UNARY = {
    "tl.exp(x)": (torch.exp, normal(100)),
    "tl.exp2(x)": (torch.exp2, normal(100) * 5),
    "tl.log(x)": (torch.log, POSITIVE),
    "tl.log2(x)": (torch.log2, POSITIVE),
    "tl.sqrt(x)": (torch.sqrt, POSITIVE),
    "tl.sqrt_rn(x)": (torch.sqrt, POSITIVE),
    "tl.rsqrt(x)": (torch.rsqrt, POSITIVE),
    "tl.sin(x)": (torch.sin, normal(100)),
    "tl.cos(x)": (torch.cos, normal(100)),
    "tl.erf(x)": (torch.erf, normal(100)),
    "tl.sigmoid(x)": (torch.sigmoid, normal(100)),
    "tl.abs(x)": (torch.abs, FLOATS),
    "tl.floor(x)": (torch.floor, FLOATS),
    "tl.ceil(x)": (torch.ceil, FLOATS),
    "-x": (torch.neg, normal(100)),
    "1 / x": (torch.reciprocal, normal(100)),
}


@pytest.mark.parametrize("expression", UNARY)
def test_a_function_of_one_number_agrees_with_torch(expression):
    function, x = UNARY[expression]
    same(elementwise(expression, x), function(x.double()), rtol=2e-6, atol=2e-7)


BINARY = {
    "x + y": torch.add,
    "x - y": torch.sub,
    "x * y": torch.mul,
    "x / y": torch.div,
    "x % y": torch.fmod,
    "tl.div_rn(x, y)": torch.div,
    "tl.minimum(x, y)": torch.fmin,  # without propagate_nan the number wins over NaN
    "tl.maximum(x, y)": torch.fmax,
    "tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)": torch.minimum,
    "tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)": torch.maximum,
    "tl.where(x > y, x, y)": lambda x, y: torch.where(x > y, x, y),
    "tl.where((x >= y) & (x != 1), 1.0, -1.0)": lambda x, y: torch.where((x >= y) & (x != 1), 1.0, -1.0),
    "tl.where(~(x < y) | (y == 0), x, 2.5)": lambda x, y: torch.where(~(x < y) | (y == 0), x, 2.5),
    "(x <= y).to(tl.float32)": lambda x, y: (x <= y).float(),
    "tl.fma(x, y, x)": lambda x, y: (x.double() * y.double() + x.double()).float(),
}


@pytest.mark.parametrize("expression", BINARY)
def test_a_function_of_two_numbers_agrees_with_torch_also_for_nan_and_infinity(expression):
    x, y = FLOATS, torch.cat([normal(117, seed=1), SPECIAL.flip(0)])
    if expression == "x % y":
        x, y = normal(128) * 9, normal(128, seed=1)
    same(elementwise(expression, x, y), BINARY[expression](x, y), rtol=4e-7)


def test_clamp_keeps_numbers_inside_and_nan_where_it_is_asked_to():
    # Without propagate_nan a NaN becomes either end, which of them depends on architecture and bounds.
    numbers = FLOATS[~FLOATS.isnan()]
    same(elementwise("tl.clamp(x, -1.0, 1.0)", numbers), numbers.clamp(-1, 1))
    propagating = "tl.clamp(x, -1.0, 0.5, propagate_nan=tl.PropagateNan.ALL)"
    same(elementwise(propagating, FLOATS), FLOATS.clamp(-1, 0.5))


def test_half_precision_rounds_after_every_operation():
    x, y, z = normal(128, dtype=F16), normal(128, dtype=F16, seed=1), normal(128, dtype=F16, seed=2)
    same(elementwise("x * y", x, y), x * y)
    same(elementwise("x + y", x, y), x + y)
    same(elementwise("tl.where(x > y, x, z)", x, y, z), torch.where(x > y, x, z))
    same(elementwise("x.to(tl.float32) * y + z", x, y, z, out=F32), x.float() * y.float() + z.float(), rtol=1e-6)


def test_a_float_argument_is_fp32_so_that_half_precision_promotes():
    text = (
        "def kernel(out_ptr, x_ptr, scale, BLOCK: tl.constexpr):\n"
        "    offs = tl.arange(0, BLOCK)\n"
        "    tl.store(out_ptr + offs, (tl.load(x_ptr + offs) * scale) * 3.0)\n"
    )
    x = normal(128, dtype=F16)
    out = torch.zeros(128, device=DEVICE)
    kernel(text)[(1,)](out, x.to(DEVICE), 0.1, BLOCK=128)
    same(out.cpu(), x.float() * 0.1 * 3.0, rtol=3e-7)


def test_a_bool_argument_and_large_integer_arguments_keep_their_value():
    text = (
        "def kernel(out_ptr, a, b, flag):\n"
        "    if flag:\n        tl.store(out_ptr, a * b)\n"
        "    else:\n        tl.store(out_ptr, a + b)\n"
    )
    out = torch.zeros(1, dtype=I64, device=DEVICE)
    kernel(text)[(1,)](out, 3_000_000_000, 2_500_000_000, True)
    assert out.item() == 7_500_000_000_000_000_000
    kernel(text)[(1,)](out, 3_000_000_000, 2_500_000_000, False)
    assert out.item() == 5_500_000_000


def integers(dtype, seed=0):
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    values = torch.randint(low, high, (120,), generator=torch.Generator().manual_seed(seed), dtype=I64)
    return torch.cat([values, torch.tensor([low, high, 0, 1, 2, 3, 5, 7])]).to(dtype)


INTEGER = {
    "x + y": torch.add,
    "x * y": torch.mul,
    "x - y": torch.sub,
    "x & y": torch.bitwise_and,
    "x | y": torch.bitwise_or,
    "x ^ y": torch.bitwise_xor,
    "~x": lambda x, y: torch.bitwise_not(x),
    "x >> 3": lambda x, y: x >> 3,
    "x << 2": lambda x, y: x << 2,
    "x // (y | 1)": lambda x, y: torch.div(x, y | 1, rounding_mode="trunc"),  # C's division, not Python's
    "x % (y | 1)": lambda x, y: torch.fmod(x, y | 1),
    "tl.minimum(x, y)": torch.minimum,
    "tl.maximum(x, y)": torch.maximum,
    "tl.where(x < y, x, y)": torch.minimum,
}


@pytest.mark.parametrize("dtype", [I8, U8, I16, I32, I64], ids=str)
@pytest.mark.parametrize("expression", INTEGER)
def test_integers_wrap_and_divide_as_in_c(expression, dtype):
    x, y = integers(dtype), integers(dtype, seed=1)
    if "//" in expression or "%" in expression:
        x = x.clone()
        x[x == torch.iinfo(dtype).min] = 3  # the smallest number by -1 has no answer
    same(elementwise(expression, x, y), INTEGER[expression](x, y))


def test_the_high_half_of_a_product_is_unsigned():
    x, y = integers(I32), integers(I32, seed=1)
    got = elementwise("tl.umulhi(x.to(tl.uint32, bitcast=True), y.to(tl.uint32, bitcast=True))", x, y)
    want = [((a & 0xFFFFFFFF) * (b & 0xFFFFFFFF)) >> 32 for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert [value & 0xFFFFFFFF for value in got.tolist()] == want
    assert [value & 0xFFFFFFFF for value in elementwise("tl.umulhi(x, y)", x, y).tolist()] == want


BITS = torch.arange(-(2**31), 2**31 - 1, 4_000_037).to(I32)  # bit patterns all over fp32, NaN and subnormals too


def test_fp32_becomes_bf16_by_rounding_to_nearest_even():
    ties = torch.tensor([0x3F808000, 0x3F818000, 0x3F80FFFF, 0x7F7FFFFF, 0x7F800001, 0x00000001, 0x7FFFFFFF])
    x = torch.cat([BITS, ties.to(I32), -ties.to(I32)]).view(F32)
    same(elementwise("x.to(tl.bfloat16)", x, out=BF16), x.to(BF16))
    same(elementwise("x", x, out=BF16), x.to(BF16))  # the store converts
    same(elementwise("x + 0.0", x.to(BF16).float(), out=BF16), x.to(BF16))


def test_bf16_becomes_fp32_exactly_and_keeps_its_bits():
    x = torch.arange(-(2**15), 2**15, 3).to(I16).view(BF16)
    same(elementwise("x.to(tl.float32)", x, out=F32), x.float())
    same(elementwise("x", x), x)
    same(elementwise("x.to(tl.int16, bitcast=True)", x, out=I16), x.view(I16))
    same(elementwise("tl.where(x.to(tl.float32) > 0, x, 0.0)", x), torch.where(x.float() > 0, x, 0))


def test_other_types_become_bf16_exactly():
    integer = torch.arange(-70000, 70000, 311).to(I32)
    same(elementwise("x.to(tl.bfloat16)", integer, out=BF16), integer.float().to(BF16))
    same(elementwise("(x > 5).to(tl.bfloat16)", integer, out=BF16), (integer > 5).to(BF16))
    half = normal(128, dtype=F16)
    same(elementwise("x.to(tl.bfloat16)", half, out=BF16), half.float().to(BF16))
    same(elementwise("x.to(tl.float16)", half.to(BF16), out=F16), half.to(BF16).to(F16))
    same(elementwise("x.to(tl.int32)", (half * 100).to(BF16), out=I32), (half * 100).to(BF16).float().to(I32))


def test_fp32_becomes_fp16_to_nearest_with_overflow_to_infinity():
    x = torch.cat([BITS.view(F32), SPECIAL, torch.tensor([65519.99, 65520.0, -65520.0, 6e-8, 2.9e-8])])
    same(elementwise("x.to(tl.float16)", x, out=F16), x.to(F16))
    same(elementwise("x.to(tl.float32)", x.to(F16), out=F32), x.to(F16).float())


def test_rounding_toward_zero_never_grows():
    x = torch.cat([normal(500) * 10, torch.tensor([70000.0, 1e-7, -3e-6])])
    half = elementwise('x.to(tl.float16, fp_downcast_rounding="rtz")', x, out=F16).float()
    step = torch.nextafter(half.to(F16), torch.tensor(math.inf).to(F16) * x.sign().to(F16)).float()
    assert bool((half.abs() <= x.abs()).all()) and bool((step.abs() > x.abs()).all())
    brain = elementwise('x.to(tl.bfloat16, fp_downcast_rounding="rtz")', x, out=BF16)
    same(brain.float(), (x.view(I32) & -65536).view(F32))


@pytest.mark.parametrize("dtype", [I8, U8, I16, I32, I64], ids=str)
def test_floats_become_integers_toward_zero(dtype):
    info = torch.iinfo(dtype)
    x = (normal(120) * min(info.max / 4, 1e9)).clamp(max(info.min, -(2**31)), min(info.max, 2**31))
    name = "u" * (dtype == U8) + f"int{info.bits}"
    same(elementwise(f"x.to(tl.{name})", x, out=dtype), x.double().trunc().to(I64).to(dtype))


def test_floats_out_of_range_become_integers_as_the_hardware_does_it():
    x = torch.tensor([1e10, -1e10, math.inf, -math.inf, math.nan, 2147483648.0, 40000.0, 300.0, -129.0])
    big, small = 2**31 - 1, -(2**31)
    want32 = [big, small, big, small, 0, big, 40000, 300, -129]
    assert elementwise("x.to(tl.int32)", x, out=I32).tolist() == want32
    want16 = [32767, -32768, 32767, -32768, 0, 32767, 32767, 300, -129]
    assert elementwise("x.to(tl.int16)", x, out=I16).tolist() == want16
    want64 = [10**10, -(10**10), 2**63 - 1, -(2**63), -(2**63), 2**31, 40000, 300, -129]
    assert elementwise("x.to(tl.int64)", x, out=I64).tolist() == want64
    assert elementwise("x.to(tl.int8)", x, out=I8).tolist() == torch.tensor(want16).to(I8).tolist()


def test_integers_become_other_integers_and_floats():
    x = integers(I64)
    for name, dtype in {"int32": I32, "int16": I16, "int8": I8, "uint8": U8}.items():
        same(elementwise(f"x.to(tl.{name})", x, out=dtype), x.to(dtype))
    same(elementwise("x.to(tl.float32)", integers(I32), out=F32), integers(I32).to(F32))
    same(elementwise("x.to(tl.float32)", integers(U8), out=F32), integers(U8).to(F32))
    same(elementwise("x / 3", integers(I32), out=F32), integers(I32).float() / 3, rtol=2e-7)


GRID = normal(32, 16, seed=3)
REDUCE = {
    "tl.sum(x, axis=1)": (lambda x: x.sum(1), (32,)),
    "tl.sum(x, axis=0)": (lambda x: x.sum(0), (16,)),
    "tl.sum(x, axis=-1)": (lambda x: x.sum(1), (32,)),
    "tl.sum(x)": (lambda x: x.sum(), ()),
    "tl.max(x, axis=1)": (lambda x: x.amax(1), (32,)),
    "tl.min(x, axis=0)": (lambda x: x.amin(0), (16,)),
    "tl.max(x)": (lambda x: x.max(), ()),
    "tl.sum(x, axis=1, keep_dims=True) + x * 0": (lambda x: x.sum(1, keepdim=True).expand(-1, 16), (32, 16)),
    "x - tl.max(x, axis=1)[:, None]": (lambda x: x - x.amax(1, keepdim=True), (32, 16)),
    "tl.cumsum(x, axis=1)": (lambda x: x.cumsum(1), (32, 16)),
    "tl.cumsum(x, axis=0)": (lambda x: x.cumsum(0), (32, 16)),
    "tl.cumsum(x, axis=1, reverse=True)": (lambda x: x.flip(1).cumsum(1).flip(1), (32, 16)),
    "tl.cumprod(x, axis=1)": (lambda x: x.cumprod(1), (32, 16)),
    "tl.softmax(x, 1, True)": (lambda x: x.softmax(1), (32, 16)),
    "tl.sort(x, 1)": (lambda x: x.sort(1).values, (32, 16)),
    "tl.flip(x, 1)": (lambda x: x.flip(1), (32, 16)),
    "tl.trans(tl.trans(x)) + tl.reshape(x, (32, 16))": (lambda x: 2 * x, (32, 16)),
    "tl.sum(tl.trans(x), axis=1)": (lambda x: x.sum(0), (16,)),
    "tl.sum(tl.ravel(x), axis=0)": (lambda x: x.sum(), ()),
}


@pytest.mark.parametrize("expression", REDUCE)
def test_reductions_and_scans_agree_with_torch(expression):
    function, shape = REDUCE[expression]
    same(reduction(expression, GRID, shape), function(GRID.double()), rtol=3e-6, atol=3e-6)


def test_an_index_of_the_largest_is_the_first_of_equals():
    x = torch.randint(0, 4, (32, 16), generator=torch.Generator().manual_seed(0)).float()
    first = [row.index(max(row)) for row in x.tolist()]
    assert reduction("tl.argmax(x, axis=1)", x, (32,), I32).tolist() == first
    assert reduction("tl.argmin(x, axis=1)", x, (32,), I32).tolist() == [r.index(min(r)) for r in x.tolist()]


def test_extremes_skip_nan_unless_there_is_nothing_else():
    x = GRID.clone()
    x[3, 5], x[4] = math.nan, math.nan
    want = x.nan_to_num(nan=-math.inf).amax(1)
    want[4] = math.nan
    same(reduction("tl.max(x, axis=1)", x, (32,)), want)


def test_small_integers_are_summed_in_32_bits_and_large_ones_wrap():
    x = torch.full((32, 16), 100, dtype=I8)
    assert reduction("tl.sum(x, axis=1)", x, (32,), I32).tolist() == [1600] * 32
    x = torch.full((32, 16), 2**30, dtype=I32)
    assert reduction("tl.sum(x, axis=1)", x, (32,), I32).tolist() == [0] * 32
    assert reduction("tl.cumsum(x, axis=1)", x, (32, 16), I32)[0].tolist() == [2**30, -(2**31), -(2**30), 0] * 4


def test_a_sum_in_half_precision_loses_what_half_precision_loses():
    x = torch.full((32, 16), 0.1, dtype=F16)
    x[:, 0] = 2048.0
    got = reduction("tl.sum(x, axis=1)", x, (32,)).float()
    assert bool((got - x.double().sum(1)).abs().max() <= 2.0) and bool((got % 2 == 0).all())
    same(reduction("tl.sum(x.to(tl.float32), axis=1)", x, (32,), F32), x.double().sum(1), rtol=1e-6)
    # One after another these would add up to 49.2: lanes are added in pairs.
    tall = torch.full((512, 4), 0.1, dtype=F16)
    same(reduction("tl.sum(x, axis=0)", tall, (4,)), tall.double().sum(0), rtol=5e-3)


def test_bf16_is_exact_where_triton_itself_widens_it_to_fp32():
    x = GRID.to(BF16)
    same(reduction("tl.max(x, axis=1)", x, (32,), F32), x.float().amax(1))
    same(reduction("tl.cumsum(x, axis=1)", x, (32, 16), F32), x.double().cumsum(1), rtol=1e-5, atol=1e-6)
    x = FLOATS.to(BF16)
    same(elementwise("tl.where(x > 0, 1.0, 0.0)", x, out=F32), (x > 0).float())
    same(elementwise("x / 3.0", x, out=F32), x.float() / 3, rtol=2e-7)
    same(elementwise("tl.maximum(x, 0.5)", x, out=F32), torch.fmax(x.float(), torch.tensor(0.5)))
    same(elementwise("x * x.to(tl.float32)", x, out=F32), x.float() * x.float())


def test_scans_and_reductions_of_ones_own_count_negative_axes_from_the_end():
    text = (
        "@triton.jit\ndef larger(a, b):\n    return tl.where(a > b, a, b)\n"
        "def kernel(out_ptr, top_ptr, x_ptr, R: tl.constexpr, C: tl.constexpr):\n"
        "    offs = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]\n"
        "    x = tl.load(x_ptr + offs)\n"
        "    tl.store(out_ptr + offs, tl.associative_scan(x, 1, larger))\n"
        "    tl.store(top_ptr + tl.arange(0, R), tl.reduce(x, 1, larger))\n"
    )
    for axis in ("1", "-1"):
        out, top = torch.zeros(8, 16, device=DEVICE), torch.zeros(8, device=DEVICE)
        x = normal(8, 16)
        kernel(text.replace("x, 1, larger", f"x, {axis}, larger"))[(1,)](out, top, x.to(DEVICE), R=8, C=16)
        same(out.cpu(), x.cummax(1).values)
        same(top.cpu(), x.amax(1))


def dot(a, b, options="", out=F32, start=None):
    text = (
        "def kernel(out_ptr, a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):\n"
        "    m = tl.arange(0, M)[:, None]\n    n = tl.arange(0, N)[None, :]\n"
        "    a = tl.load(a_ptr + m * K + tl.arange(0, K)[None, :])\n"
        "    b = tl.load(b_ptr + tl.arange(0, K)[:, None] * N + n)\n"
        "    c = tl.load(c_ptr + m * N + n)\n"
        f"    tl.store(out_ptr + m * N + n, tl.dot(a, b, c{options}))\n"
    )
    (m, k), n = a.shape, b.shape[1]
    c = torch.zeros(m, n, dtype=out) if start is None else start
    result = torch.zeros(m, n, dtype=out, device=DEVICE)
    kernel(text)[(1,)](result, a.to(DEVICE), b.to(DEVICE), c.to(DEVICE), M=m, N=n, K=k)
    return result.cpu()


def rms(got, want):
    return float((got.double() - want).norm() / want.norm())


def test_a_product_of_halves_is_summed_in_fp32():
    a, b = normal(64, 128, dtype=F16), normal(128, 32, dtype=F16, seed=1)
    same(dot(a, b), a.double() @ b.double(), rtol=1e-5, atol=2e-5)


def test_a_product_summed_in_fp16_shows_its_error():
    a, b = normal(64, 128, dtype=F16), normal(128, 32, dtype=F16, seed=1)
    error = rms(dot(a, b, ", out_dtype=tl.float16", F16), a.double() @ b.double())
    assert 3e-4 < error < 2e-3


def test_an_fp32_product_is_tf32_unless_ieee_is_asked():
    a, b = normal(64, 64), normal(64, 64, seed=1)
    want = a.double() @ b.double()
    assert 4e-4 < rms(dot(a, b), want) < 2e-3
    assert rms(dot(a, b, ', input_precision="tf32"'), want) > 4e-4
    assert rms(dot(a, b, ', input_precision="ieee"'), want) < 1e-6
    assert rms(dot(a, b, ', input_precision="tf32x3"'), want) < 3e-6


def test_tf32_cuts_the_last_13_bits_off():
    x, one = normal(64, 64), torch.eye(64)
    cut = (x.view(I32) & -8192).view(F32)
    same(dot(x, one), cut)
    same(dot(one, x), cut)


def test_other_products_are_exact():
    a, b = integers(I8)[:64].repeat(32, 1)[:32], torch.arange(-64 * 16, 64 * 16).to(I8).reshape(64, 32)
    same(dot(a, b, ", out_dtype=tl.int32", I32), a.double() @ b.double())
    start = normal(32, 32)
    x, y = normal(32, 32, dtype=F16), normal(32, 32, dtype=F16, seed=1)
    same(dot(x, y, start=start), x.double() @ y.double() + start.double(), rtol=1e-5, atol=1e-5)


def test_a_loop_runs_with_bounds_known_only_at_run_time():
    text = (
        "def kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):\n"
        "    offs = tl.arange(0, BLOCK)\n"
        "    total = tl.zeros((BLOCK,), tl.float32)\n"
        "    for k in range(0, n, BLOCK):\n"
        "        total += tl.load(x_ptr + k + offs, mask=k + offs < n, other=0.0)\n"
        "    for k in tl.range(0, tl.cdiv(n, BLOCK)):\n"
        "        total += tl.load(x_ptr + k * BLOCK + offs, mask=k * BLOCK + offs < n, other=0.0)\n"
        "    i = 0\n"
        "    while i < n:\n"
        "        total += tl.load(x_ptr + i + offs, mask=i + offs < n, other=0.0)\n"
        "        i += BLOCK\n"
        "    for _ in tl.static_range(3):\n"
        "        total = total * 2\n"
        "    tl.store(out_ptr, tl.sum(total, axis=0))\n"
    )
    x, out = normal(77), torch.zeros(1, device=DEVICE)
    kernel(text)[(1,)](out, x.to(DEVICE), 77, BLOCK=16)
    assert out.item() == pytest.approx(24 * x.double().sum().item(), rel=1e-5)


def test_strided_loads_and_stores_of_a_partial_block():
    text = (
        "def kernel(out_ptr, x_ptr, M, N, stride_m, stride_n, out_m, out_n, BLOCK: tl.constexpr):\n"
        "    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)\n"
        "    mask = (m[:, None] < M) & (n[None, :] < N)\n"
        "    x = tl.load(x_ptr + m[:, None] * stride_m + n[None, :] * stride_n, mask=mask, other=-7.0)\n"
        "    tl.store(out_ptr + n[:, None] * out_m + m[None, :] * out_n, tl.trans(x), mask=tl.trans(mask))\n"
    )
    x = normal(21, 60)[:, ::2]
    out = torch.full((30, 21), math.nan, device=DEVICE)
    there = normal(21, 60).to(DEVICE)[:, ::2]
    kernel(text)[(2, 2)](out, there, 21, 30, *there.stride(), *out.stride(), BLOCK=16)
    same(out.cpu(), x.T)


def test_the_value_for_masked_lanes_is_used():
    assert elementwise("tl.sum(tl.where(mask, x, 0), 0) + 0 * x", torch.ones(8), n=5).tolist()[:5] == [5.0] * 5
    text = (
        "def kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):\n    offs = tl.arange(0, BLOCK)\n"
        "    x = tl.load(x_ptr + offs, mask=offs < n, other=float('-inf'))\n    tl.store(out_ptr, tl.max(x, 0))\n"
    )
    out = torch.zeros(1, device=DEVICE)
    kernel(text)[(1,)](out, torch.full((16,), -3.0, device=DEVICE), 5, BLOCK=16)
    assert out.item() == -3.0


ATOMIC = {
    ("add", I32): lambda old, x: old + x.sum(),
    ("add", F32): lambda old, x: old + x.sum(),
    ("add", F16): lambda old, x: old + x.sum(),
    ("max", I32): lambda old, x: x.max().clamp(min=old),
    ("min", I32): lambda old, x: x.min().clamp(max=old),
    ("max", F32): lambda old, x: x.max().clamp(min=old),
    ("min", F32): lambda old, x: x.min().clamp(max=old),
    ("and", I32): lambda old, x: torch.tensor(reduce(int.__and__, x.tolist(), old)),
    ("or", I32): lambda old, x: torch.tensor(reduce(int.__or__, x.tolist(), old)),
    ("xor", I32): lambda old, x: torch.tensor(reduce(int.__xor__, x.tolist(), old)),
}


@pytest.mark.parametrize(("operation", "dtype"), ATOMIC, ids=str)
def test_atomics_meet_in_one_place(operation, dtype):
    text = (
        "def kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):\n"
        "    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    mask = offs < n\n"
        "    x = tl.load(x_ptr + offs, mask=mask, other=0)\n"
        f"    tl.atomic_{operation}(out_ptr + offs * 0, x, mask=mask)\n"
    )
    x = torch.arange(-20, 17).to(dtype)
    out = torch.full((1,), 3, dtype=dtype, device=DEVICE)
    kernel(text)[(3,)](out, x.to(DEVICE), 37, BLOCK=16)
    same(out.cpu(), ATOMIC[operation, dtype](3, x).reshape(1))


def philox(seed, counter, rounds=10):
    """Philox 4x32 in Python's integers; the first of the four words."""
    c, k, word = [counter, 0, 0, 0], [seed & 0xFFFFFFFF, seed >> 32], 0xFFFFFFFF
    for _ in range(rounds):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & word, (a >> 32) ^ c[3] ^ k[1], a & word]
        k = [(k[0] + 0x9E3779B9) & word, (k[1] + 0xBB67AE85) & word]
    return c[0]


@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1, 123456789012])
def test_random_numbers_are_those_of_philox(seed):
    text = (
        "def kernel(out_ptr, int_ptr, seed, BLOCK: tl.constexpr):\n"
        "    offs = tl.arange(0, BLOCK)\n"
        "    tl.store(out_ptr + offs, tl.rand(seed, offs))\n"
        "    tl.store(int_ptr + offs, tl.randint(seed, offs))\n"
    )
    uniform = torch.zeros(64, device=DEVICE)
    whole = torch.zeros(64, dtype=I32, device=DEVICE)
    kernel(text)[(1,)](uniform, whole, seed, BLOCK=64)
    want = torch.tensor([philox(seed, i) for i in range(64)], dtype=I64).to(I32)
    same(whole.cpu(), want)
    folded = torch.where(want < 0, -want - 1, want).float()
    same(uniform.cpu(), folded * 4.6566127342e-10)


def test_histogram_gather_join_and_split():
    x = torch.randint(0, 16, (64,), generator=torch.Generator().manual_seed(0)).to(I32)
    text = (
        "def kernel(out_ptr, pick_ptr, x_ptr):\n    i = tl.arange(0, 64)\n    x = tl.load(x_ptr + i)\n"
        "    tl.store(out_ptr + tl.arange(0, 16), tl.histogram(x, 16))\n"
        "    a, b = tl.split(tl.join(x, tl.gather(x, 63 - i, 0)))\n"
        "    tl.store(pick_ptr + i, a * 100 + b)\n"
    )
    counts, picked = (torch.zeros(n, dtype=I32, device=DEVICE) for n in (16, 64))
    kernel(text)[(1,)](counts, picked, x.to(DEVICE))
    same(counts.cpu(), x.bincount(minlength=16))
    same(picked.cpu(), x * 100 + x.flip(0))


def test_descriptors_fill_with_zeros_and_write_only_inside():
    text = (
        "def kernel(out_ptr, x_ptr, M, N: tl.constexpr):\n"
        "    x = tl.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [16, 16])\n"
        "    out = tl.make_tensor_descriptor(out_ptr, [M, N], [N, 1], [16, 16])\n"
        "    at = [tl.program_id(0) * 16, tl.program_id(1) * 16]\n"
        "    block = x.load(at)\n"
        "    out.store(at, block + tl.sum(tl.sum(block, 1), 0))\n"
    )
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=I8, device=DEVICE))
    x = torch.ones(24, 40)
    out = torch.full((30, 40), math.nan, device=DEVICE)
    kernel(text)[(2, 3)](out, x.to(DEVICE), 24, N=40)
    assert out.isnan().sum() == 6 * 40
    want = torch.tensor([[257.0, 257, 129], [129, 129, 65]])
    same(out.cpu()[:24].reshape(24, 40), want.repeat_interleave(16, 0)[:24].repeat_interleave(16, 1)[:, :40])


def test_compare_and_swap_scalars_and_wide_offsets():
    text = (
        "def kernel(out_ptr, lock_ptr, x_ptr, far):\n"
        "    pid = tl.program_id(0)\n"
        "    first = tl.atomic_cas(lock_ptr, 0, pid + 1)\n"
        "    there = x_ptr + pid.to(tl.int64) * far\n"
        "    tl.store(out_ptr + pid, tl.load(there - pid.to(tl.int64) * far) + tl.where(first == 0, 10.0, 0.0))\n"
        "    tl.store(out_ptr + 4 + pid, pid * far)\n"
    )
    out, lock = torch.zeros(8, device=DEVICE), torch.zeros(1, dtype=I32, device=DEVICE)
    kernel(text)[(4,)](out, lock, torch.ones(1, device=DEVICE), 2**30)
    assert sorted(out.tolist()[:4]) == [1.0, 1.0, 1.0, 11.0]
    assert out.tolist()[4:] == [0.0, 2.0**30, -(2.0**31), -(2.0**30)]  # 32-bit offsets wrap, as they must show


REFUSED = ["x + x", "x * 2.0", "x > x", "-x", "tl.abs(x)", "tl.sum(x, 0)", "tl.cdiv(x, x)", "x - 1.0", "x == x"]


@interpreter_only
@pytest.mark.parametrize("expression", REFUSED)
def test_arithmetic_on_bf16_is_refused_with_the_way_out(expression):
    with pytest.raises(Exception, match=r"bf16 arithmetic is not exact .* convert with \.to\(tl\.float32\)"):
        elementwise(expression, torch.ones(16, dtype=BF16))


@interpreter_only
def test_products_and_atomics_of_bf16_are_refused():
    with pytest.raises(Exception, match="bf16 arithmetic"):
        dot(torch.ones(16, 16, dtype=BF16), torch.ones(16, 16, dtype=BF16))
    text = "def kernel(out_ptr, x_ptr):\n    tl.atomic_add(out_ptr, tl.load(x_ptr))\n"
    with pytest.raises(Exception, match="bf16 arithmetic"):
        kernel(text)[(1,)](torch.zeros(1, dtype=BF16), torch.ones(1, dtype=BF16))


@interpreter_only
@pytest.mark.parametrize("expression", ["x + x", "x.to(tl.float32)", "x > x"])
def test_float8_is_refused_apart_from_moving_it(expression):
    text = (
        "def kernel(out_ptr, x_ptr):\n    i = tl.arange(0, 16)\n    x = tl.load(x_ptr + i)\n"
        f"    tl.store(out_ptr + i, {expression})\n"
    )
    x, out = torch.ones(16).to(torch.float8_e4m3fn), torch.zeros(16)
    with pytest.raises(Exception, match="GPU"):
        kernel(text)[(1,)](out, x)
    moved = torch.zeros(16, dtype=x.dtype)
    kernel(text.replace(expression, "x"))[(1,)](moved, x)
    same(moved.float(), x.float())


@interpreter_only
def test_a_masked_lane_without_other_is_not_a_convenient_zero():
    text = (
        "def kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):\n    offs = tl.arange(0, BLOCK)\n"
        "    tl.store(out_ptr, tl.sum(tl.load(x_ptr + offs, mask=offs < n), 0))\n"
    )
    for dtype in (F32, F16):
        out = torch.zeros(1, dtype=dtype)
        kernel(text)[(1,)](out, torch.ones(16, dtype=dtype), 5, BLOCK=16)
        assert out.isnan().all()
    out = torch.zeros(1, dtype=I32)
    kernel(text)[(1,)](out, torch.ones(16, dtype=I32), 5, BLOCK=16)
    assert out.item() != 5


@interpreter_only
@pytest.mark.parametrize("condition", ["x > 0", "(x > 0) and (x < 3)", "not (x > 0)", "0 < x < 3"])
def test_a_block_is_neither_true_nor_false(condition):
    text = (
        "def kernel(x_ptr):\n    x = tl.load(x_ptr + tl.arange(0, 16))\n"
        f"    if {condition}:\n        tl.store(x_ptr, 9.0)\n"
    )
    with pytest.raises(Exception, match=r"tl\.where"):
        kernel(text)[(1,)](torch.ones(16))


@interpreter_only
def test_what_has_no_answer_is_refused():
    with pytest.raises(Exception, match="NaN"):
        reduction("tl.argmax(x, axis=1)", torch.full((32, 16), math.nan), (32,), I32)
    with pytest.raises(Exception, match="K >= 16"):
        dot(torch.ones(16, 8, dtype=F16), torch.ones(8, 16, dtype=F16))
    with pytest.raises(Exception, match="bins"):
        elementwise("tl.sum(tl.histogram(x, 16), 0) + x", torch.full((16,), 16, dtype=I32))
    with pytest.raises(Exception, match="outside"):
        elementwise("tl.gather(x, x, 0)", torch.full((16,), -1, dtype=I32))
