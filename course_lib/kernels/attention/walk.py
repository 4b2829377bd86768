"""The loop over keys that both forward kernels of plain Triton make: scores, softmax as they come, sums.

The softmax of a row is made as its keys come (online softmax). With m the largest score so far and
l = sum_j exp(s_j - m), a new block with a larger maximum m' asks for one correction of all that was summed:

    l <- l exp(m - m') + sum_j exp(s_j - m')        acc <- acc exp(m - m') + sum_j exp(s_j - m') v_j

Exponentials are powers of two, since that is what the hardware has: log2(e) goes into the scale, and scaling and
subtracting become one fused multiply-add. m and l live in that base.
"""

import triton
import triton.language as tl

from course_lib.kernels.attention.masks import visible
from course_lib.kernels.attention.rows import add_products, load_rows, matrix_products, scale_rows

__all__ = ["walk_keys"]


@triton.jit
def walk_keys(
    acc, acc_rest, row_max, row_sum, q, q_rest, k_rows, v_rows,
    first, end, offs_m, n_valid, diagonal, scale_log2,
    HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
    TMA: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr,
    PIPELINED: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Over the blocks of keys from `first` to `end`. MASKED: some of these keys may be out of sight.

    A block of D columns is two, MAIN and REST.
    """
    # Where threads load (cp.async) only one of two loops that share accumulators may be pipelined: with both, the
    # assembler cannot tell who holds the accumulator between them and waits after every single wgmma of either (its
    # note C7515). Where the copy engine loads, both can be.
    stages: tl.constexpr = None if PIPELINED else 1
    # A weight of 0 hides no NaN: values behind the length of a sequence have to be 0 as well.
    CUT: tl.constexpr = PADDED and MASKED
    for start in tl.range(first, end, BLOCK_N, num_stages=stages):
        if CUT:  # v passes through registers: early, while they hold no p (at 128 columns 116 bytes spill and not 372)
            v, v_rest = load_rows(v_rows, start, n_valid, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, MASKED, TMA, True)
        k, k_rest = load_rows(
            k_rows, start, n_valid, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, MASKED, TMA
        )  # (BLOCK_N, D)
        s = matrix_products(q, q_rest, k, k_rest, REST, PRECISION)  # (BLOCK_M, BLOCK_N)
        if MASKED:
            offs_n = start + tl.arange(0, BLOCK_N)
            see = visible(offs_m[:, None], offs_n[None, :], n_valid, diagonal, CAUSAL, WHOLE)
            s = tl.where(see, s * scale_log2, -float("inf"))
            new_max = tl.maximum(row_max, tl.max(s, axis=1))
            # -inf - -inf is NaN; any finite shift makes 0 of the terms of a row that has seen no key.
            shift = tl.where(new_max == -float("inf"), 0.0, new_max)
            p = tl.exp2(s - shift[:, None])  # (BLOCK_M, BLOCK_N)
        else:
            new_max = tl.maximum(row_max, tl.max(s, axis=1) * scale_log2)
            shift = new_max
            p = tl.exp2(s * scale_log2 - shift[:, None])  # (BLOCK_M, BLOCK_N)
        correction = tl.exp2(row_max - shift)  # (BLOCK_M,)
        row_max = new_max
        acc, acc_rest = scale_rows(acc, acc_rest, correction, REST)
        if not CUT:
            v, v_rest = load_rows(v_rows, start, n_valid, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, MASKED, TMA)
        acc, acc_rest = add_products(acc, acc_rest, p.to(v.dtype), v, v_rest, REST, PRECISION)  # (BLOCK_M, D)
        row_sum = row_sum * correction + tl.sum(p, axis=1)  # while the tensor cores make the product above
    return acc, acc_rest, row_max, row_sum
