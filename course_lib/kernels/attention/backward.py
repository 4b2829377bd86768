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

from course_lib.kernels.attention.dkdv import dkdv_kernel
from course_lib.kernels.attention.dq import dq_kernel
from course_lib.kernels.attention.masks import head_start, which_head
from course_lib.kernels.attention.operands import LOG2_E, precision, spans, strides, unit
from course_lib.kernels.attention.parts import load_rows, split
from course_lib.kernels.attention.tuning import Tuned, tuned

__all__ = ["backward"]

ROWS = 32  # of a program of _rows_kernel: 8 KB to read at head size 128


@triton.jit
def _rows_kernel(
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


def _rows(do, o, l, dl):
    """What both passes need of each query, (B, H, n_q) fp32: L in base 2, and delta. Bytes: read o and do."""
    (B, H, n_q, D), (main, rest) = o.shape, split(o.shape[-1])
    shift, delta = torch.empty_like(l), torch.empty_like(l)
    step = unit(o, do)
    if l.numel():
        _rows_kernel[(triton.cdiv(n_q, ROWS) * B * H,)](
            shift, delta, l, o, do, dl if dl is None else dl.contiguous(),
            H, n_q,
            *strides(o, step), *strides(do, step),
            HEAD=D, MAIN=main, REST=rest, UNIT=step, WIDE=spans(ROWS, main + rest, o, do), BLOCK_M=ROWS,
            num_warps=4,
        )  # fmt: skip
    return shift, delta


def backward(do, q, k, v, o, l, causal: bool, scale: float, k_lengths=None, dl=None, table: Tuned | None = None):
    """do like o, any strides; o and L as `forward` gave them -> dq, dk, dv. FLOP: 14 B H n_q n_k D, causal half."""
    (B, H, n_q, D), (kv_heads, n_k) = q.shape, k.shape[1:3]
    table = table or tuned(D, causal, q.dtype, q.device)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    shift, delta = _rows(do, o, l, dl)
    main, rest = split(D)
    tensors = (q, k, v, do, dq, dk, dv)
    step = unit(*tensors)
    widest = max(table.dq.m, table.dq.n, table.dkdv.m, table.dkdv.n)
    meta = {"GROUP": H // kv_heads, "HEAD": D, "MAIN": main, "REST": rest, "UNIT": step, "CAUSAL": causal}
    meta |= {"WIDE": spans(widest, main + rest, *tensors), "PRECISION": precision(q.dtype)}
    inputs = (*strides(q, step), *strides(k, step), *strides(v, step), *strides(do, step), scale, scale * LOG2_E)
    if dq.numel():
        dq_kernel[(triton.cdiv(n_q, table.dq.m) * B * H,)](
            dq, q, k, v, do, shift, delta, k_lengths,
            H, n_q, n_k,
            *strides(dq, step), *inputs,
            **meta, BLOCK_M=table.dq.m, BLOCK_N=table.dq.n, num_warps=table.dq.warps, num_stages=table.dq.stages,
        )  # fmt: skip
    if dk.numel():
        dkdv_kernel[(triton.cdiv(n_k, table.dkdv.n) * B * kv_heads,)](
            dk, dv, q, k, v, do, shift, delta, k_lengths,
            kv_heads, n_q, n_k,
            *strides(dk, step), *strides(dv, step), *inputs,
            **meta, BLOCK_M=table.dkdv.m, BLOCK_N=table.dkdv.n,
            num_warps=table.dkdv.warps, num_stages=table.dkdv.stages,
        )  # fmt: skip
    return dq, dk, dv
