"""Attention, backward: the probabilities are made again from L, in two passes, and no two programs add to one sum.

    p = exp(s - L)    dp = do vᵀ    ds = p (dp - delta)    delta_i = sum_j p_ij dp_ij = sum_d do_id o_id

    shift, delta                    L in base 2 and delta, a row each
    dq = scale ds k                 one program a block of queries, walking over the keys
    dk = scale dsᵀ q, dv = pᵀ do    one program a block of keys, walking over the queries that see them, and over all
                                    query heads that share these keys

Seven products are made where a single pass would make five: s and dp are made twice. For that no program ever writes
where another does: no atomic additions, and the same bits on every run.
"""

import torch
import triton
import triton.language as tl

from course_lib.kernels.attention.dkdv import gradients_of_k_and_v
from course_lib.kernels.attention.dq import gradient_of_q
from course_lib.kernels.attention.masks import head_start, which_head
from course_lib.kernels.attention.operands import spans, strides, unit
from course_lib.kernels.attention.parts import load_rows, split
from course_lib.kernels.attention.tuning import tuned

__all__ = ["backward", "row_terms"]

ROWS = 32  # of a program of _row_terms_kernel: 8 KB to read at head size 128


@triton.jit
def _row_terms_kernel(
    shift_ptr, delta_ptr, l_ptr, o_ptr, do_ptr, dl_ptr,
    heads, n_q,
    stride_o_b, stride_o_h, stride_o_m, stride_o_d,
    stride_do_b, stride_do_h, stride_do_m, stride_do_d,
    HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
):  # fmt: skip
    LOG2_E: tl.constexpr = 1.4426950408889634
    block, batch, head = which_head(heads, tl.cdiv(n_q, BLOCK_M))
    first = block * BLOCK_M
    offs_m = first + tl.arange(0, BLOCK_M)
    mask_m = offs_m < n_q
    row = (tl.cast(batch, tl.int64) * heads + head) * n_q
    o_ptr = head_start(o_ptr, batch, head, stride_o_b, stride_o_h, UNIT)
    do_ptr = head_start(do_ptr, batch, head, stride_do_b, stride_do_h, UNIT)
    o, o_rest = load_rows(o_ptr, first, n_q, stride_o_m, stride_o_d, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True)
    do, do_rest = load_rows(do_ptr, first, n_q, stride_do_m, stride_do_d, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    if REST:
        delta += tl.sum(o_rest.to(tl.float32) * do_rest.to(tl.float32), axis=1)
    if dl_ptr is not None:  # dL/ds = p, so a gradient of L is one more term beside dp - delta
        delta -= tl.load(dl_ptr + row + offs_m, mask=mask_m, other=0.0)
    l = tl.load(l_ptr + row + offs_m, mask=mask_m, other=0.0)
    # +inf for a query with no key: its probabilities become exp2(-inf) = 0, where -inf - -inf would be NaN.
    shift = tl.where(l == -float("inf"), float("inf"), l * LOG2_E)
    tl.store(delta_ptr + row + offs_m, delta, mask=mask_m)
    tl.store(shift_ptr + row + offs_m, shift, mask=mask_m)


def row_terms(do, o, l, dl):
    """What both passes need of each query, (B, H, n_q) fp32: L in base 2, and delta. Bytes: read o and do."""
    (B, H, n_q, D), (main, rest) = o.shape, split(o.shape[-1])
    shift, delta = torch.empty_like(l), torch.empty_like(l)
    step = unit(o, do)
    if l.numel():
        _row_terms_kernel[(triton.cdiv(n_q, ROWS) * B * H,)](
            shift, delta, l, o, do, dl if dl is None else dl.contiguous(),
            H, n_q,
            *strides(o, step), *strides(do, step),
            HEAD=D, MAIN=main, REST=rest, UNIT=step, WIDE=spans(ROWS, main + rest, o, do), BLOCK_M=ROWS,
            num_warps=4,
        )  # fmt: skip
    return shift, delta


def backward(do, q, k, v, o, l, causal: bool, scale: float, k_lengths=None, dl=None):
    """do like o, any strides; o and L as `forward` gave them; dl (B, H, n_q) or None -> dq, dk, dv.

    FLOP: 14 B H n_q n_k D, half of it causal.
    """
    table = tuned(q.shape[-1], causal, q.dtype, q.device)
    shift, delta = row_terms(do, o, l, dl)
    dq = gradient_of_q(do, q, k, v, shift, delta, causal, scale, k_lengths, table.dq)
    return dq, *gradients_of_k_and_v(do, q, k, v, shift, delta, causal, scale, k_lengths, table.dkdv)
