"""Reductions, products, loads and atomics against torch: on the tier at hand, so the same table proves both.

In the interpreter it shows that no operation is silently wrong; on a GPU it shows that the truth the
interpreter is held to is what the hardware does.
"""

import math
from functools import reduce

import pytest
import torch

from course_lib.device import DEVICE

# isort: split
import triton

from tests.course_lib.expressions import (
    BF16,
    F16,
    F32,
    FLOATS,
    I8,
    I32,
    I64,
    dot,
    elementwise,
    integers,
    kernel,
    normal,
    reduction,
    same,
)

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


WELFORD = """
@triton.jit
def both(m1, s1, n1, m2, s2, n2):
    d, n = m2 - m1, n1 + n2
    return m1 + d * n2 / n, s1 + s2 + d * d * n1 * n2 / n, n
def kernel(out_ptr, x_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    mean, square, count = tl.reduce((x, x * 0.0, x * 0.0 + 1.0), 0, both)
    tl.store(out_ptr, mean)
    tl.store(out_ptr + 1, square / count)
"""
BRANCHES = """
@triton.jit
def larger(a, b):
    if a > b:
        b = a
    return b
def kernel(out_ptr, x_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out_ptr + tl.arange(0, N)[:, None], tl.reduce(x, 1, larger, keep_dims=True))
"""


def test_a_reduction_of_ones_own_rounds_as_seldom_as_on_a_gpu():
    x, out = 1000 + normal(4096), torch.zeros(2, device=DEVICE)
    kernel(WELFORD)[(1,)](out, x.to(DEVICE), N=4096)
    mean = x.double().mean()
    assert abs(out[0].item() - mean) < 1.5e-4  # two steps of fp32; one after the other it is 13 of them
    assert out[1].item() == pytest.approx(x.double().var(unbiased=False).item(), rel=1e-4)


def test_a_reduction_of_ones_own_may_branch():
    x, out = normal(8, 8), torch.zeros(8, device=DEVICE)
    kernel(BRANCHES)[(1,)](out, x.to(DEVICE), N=8)
    same(out.cpu(), x.amax(1))


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
