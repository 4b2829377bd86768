"""The probabilities, made again from the scores and L, as both passes of the backward need them."""

import triton
import triton.language as tl

from course_lib.kernels.attention.masks import visible

__all__ = ["load_shift", "probabilities"]


@triton.jit
def load_shift(l_ptr, offs_m, n_q):
    """L in base 2; +inf for a query with no key and past the last one, whose probabilities become exp2(-inf) = 0."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    l = tl.load(l_ptr + offs_m, mask=offs_m < n_q, other=float("inf"))
    return tl.where(l == -float("inf"), float("inf"), l * LOG2_E)


@triton.jit
def probabilities(
    s, shift, offs_m, offs_n, n_valid, diagonal, scale_log2, CAUSAL: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """exp2(s scale - shift), 0 out of sight; shift, offs_m and offs_n already broadcastable to s."""
    if MASKED:
        see = visible(offs_m, offs_n, n_valid, diagonal, CAUSAL)
        p = tl.exp2(tl.where(see, s * scale_log2, -float("inf")) - shift)
    else:
        p = tl.exp2(s * scale_log2 - shift)
    return p
