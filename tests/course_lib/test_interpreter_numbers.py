"""Every operation on numbers that the lessons use, against torch: on the tier at hand, so the same table proves both.

In the interpreter it shows that no operation is silently wrong; on a GPU it shows that the truth the
interpreter is held to is what the hardware does.
"""

import math

import pytest
import torch

from course_lib.device import DEVICE
from tests.course_lib.expressions import (
    BF16,
    F16,
    F32,
    FLOATS,
    I8,
    I16,
    I32,
    I64,
    SPECIAL,
    U8,
    elementwise,
    integers,
    kernel,
    normal,
    same,
)

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


@pytest.mark.parametrize("name", "abs ceil cos erf exp exp2 floor log log2 rsqrt sigmoid sin sqrt sqrt_rn".split())
def test_a_function_of_one_number_is_a_method_too(name):
    x = POSITIVE
    same(elementwise(f"x.{name}()", x), elementwise(f"tl.{name}(x)", x))


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
