"""Random numbers that are a function of a seed and a place: Philox 4x32 with ten rounds, as a kernel makes them.

Ten rounds of multiplications make four numbers of 32 bits of a seed and a counter. A counter costs about 60
instructions, or 40 where both halves of a product come from one multiplication, as they do here.
"""

import functools

import numpy as np
import torch
import triton
import triton.language as tl

__all__ = ["SCALE", "draw_seed", "keeps", "random_bits", "smallest_kept"]

SCALE = np.float32(4.6566127342e-10)  # of tl.rand: a little less than 2^-31, so that no number rounds up to 1


@functools.cache
def smallest_kept(p: float) -> int:
    """tl.rand is a scale times an integer below 2^31, so `tl.rand(..) >= p` asks whether that integer is this or more.

    Asked so it is one comparison, without a conversion to fp32 and a multiplication for every element.
    """
    low, high = 0, 2**31 - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if np.float32(middle) * SCALE >= np.float32(p) else (middle + 1, high)
    return low


@triton.jit
def _both_halves(a, b: tl.constexpr):
    """Of a product of 32 by 32 bits, from one multiplication; Triton's own way takes two."""
    if triton.knobs.runtime.interpret:  # which takes no assembly
        product = a.to(tl.uint64) * b
        high, low = (product >> 32).to(tl.uint32), product.to(tl.uint32)
    else:
        high, low = tl.inline_asm_elementwise(
            "{ .reg .b64 t; mul.wide.u32 t, $2, $3; mov.b64 {$1, $0}, t; }",
            "=r,=r,r,r", [a, tl.full(a.shape, b, tl.uint32)], dtype=(tl.uint32, tl.uint32), is_pure=True, pack=1,
        )  # fmt: skip
    return high, low


@triton.jit
def _four_bits(seed, counters):
    """The four of a counter in 64 bits, as tl.randint4x makes them."""
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    c0, c1 = counters.to(tl.uint32), (counters >> 32).to(tl.uint32)
    c2, c3 = tl.zeros_like(c0), tl.zeros_like(c0)
    for _ in tl.static_range(10):
        high_a, low_a = _both_halves(c0, 0xD2511F53)
        high_b, low_b = _both_halves(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0 = tl.add(k0, 0x9E3779B9, sanitize_overflow=False)
        k1 = tl.add(k1, 0xBB67AE85, sanitize_overflow=False)
    return c0, c1, c2, c3


@triton.jit
def random_bits(seed, counters):
    """(rows, n) counters -> (rows, 4 n) in 32 bits: the four of counter 0, the four of counter 1, ..."""
    a, b, c, d = _four_bits(seed, counters)
    four = tl.join(tl.join(a, c), tl.join(b, d))  # the last dimension counts first: a, b, c, d
    return tl.reshape(four, (counters.shape[0], 4 * counters.shape[1]))


@triton.jit
def keeps(bits, least):
    """Is the integer that tl.rand would scale at least `least`? It is m, the bits with a sign, or -m - 1 where m < 0.

    So those from -least to least - 1 go, and `least` more makes of them the unsigned numbers below 2 least: one test.
    """
    least = least.to(tl.uint32)
    return bits.to(tl.uint32, bitcast=True) + least >= 2 * least


def draw_seed(device: torch.device | str) -> torch.Tensor:
    """(1,) int64 from torch's generator of that device: 8 bytes, and one launch of 2 us that a CUDA graph may hold."""
    return torch.randint(0, 2**63 - 1, (1,), dtype=torch.int64, device=device)
