"""shift and delta, the two numbers of each query that the backward pass needs: L in base 2, and sum_d do_d o_d."""

import math

import torch
import triton
import triton.language as tl

__all__ = ["load_terms", "row_terms", "terms_of", "terms_to_walk"]


@triton.jit
def terms_of(do, do_rest, o, o_rest, l_ptr, dl_ptr, offs_m, n_q, REST: tl.constexpr):
    """shift and delta of these queries; delta = sum_d do_d o_d, which is sum_j dp_j p_j."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    if REST:
        delta += tl.sum(o_rest.to(tl.float32) * do_rest.to(tl.float32), axis=1)
    if dl_ptr is not None:  # dL/ds = p, so a gradient of L is one more term beside dp - delta
        delta -= tl.load(dl_ptr + offs_m, mask=offs_m < n_q, other=0.0)
    l = tl.load(l_ptr + offs_m, mask=offs_m < n_q, other=-float("inf"))
    # +inf for a query with no key: its probabilities become exp2(-inf) = 0, where -inf - -inf would be NaN.
    return tl.where(l == -float("inf"), float("inf"), l * LOG2_E), delta


@triton.jit
def load_terms(row, start, offs_m, n_q, BLOCK_M: tl.constexpr, TMA: tl.constexpr):
    """shift or delta of queries from `start` on. Behind the last query any number will do: q and do are 0 there, and so
    is all that is added. Between a length and the last query they are inf and 0, as dq_kernel leaves them."""
    # Without the copy engine every thread fetches the numbers of its own columns, 16 loads and 16 masks for each of the
    # two: 190 of 530 instructions of the loop at head size 64.
    if TMA:
        terms = row[1].load([row[0], start]).reshape(BLOCK_M)
    else:
        terms = tl.load(row[0] + offs_m, mask=offs_m < n_q, other=0.0)
    return terms


@triton.jit
def terms_to_walk(ptr, tiles, row, stride, TMA: tl.constexpr):
    if TMA:
        terms = (row, tiles)
    else:
        terms = (ptr + tl.cast(row, tl.int64) * stride,)
    return terms


def row_terms(l: torch.Tensor) -> torch.Tensor:
    """Room for shift and delta: two of (B H, n_q) fp32, each row at a multiple of 16 bytes, as the copy engine asks."""
    *heads, n_q = l.shape
    terms = torch.empty(2, math.prod(heads), -(-n_q // 4) * 4, dtype=torch.float32, device=l.device)
    return terms[..., :n_q] if n_q % 4 else terms
