"""Attention, backward, where a block holds all keys of a head: one program makes the three gradients of the head.

    p = exp(s - L)    dp = do vᵀ    delta_i = sum_j p_ij dp_ij    ds = p (dp - delta)
    dv = pᵀ do        dk = scale dsᵀ q        dq = scale ds k

Five products, as one pass makes them, and no sum is shared: nothing is added in device memory, and the bits are the
same on every run. A program walks over the queries and has whole rows of p and dp, so delta is a sum of their products
and o is not read. Bytes: q, k, v, do and L are read, dq, dk and dv are written.
"""

import triton
import triton.language as tl

from course_lib.kernels.attention.masks import at_run_time, head_start, keys_of, probabilities, queries_of
from course_lib.kernels.attention.rows import (
    LOG2_E,
    add_products,
    load_rows,
    matrix_products,
    precision,
    scale_rows,
    spans,
    store_rows,
    zero_rows,
)
from course_lib.kernels.attention.tuning import OneBlock
from course_lib.kernels.columns import split
from course_lib.kernels.launching import launch
from course_lib.kernels.strides import in_units, unit_of

__all__ = ["one_block_kernel", "write_in_one_block"]


@triton.jit
def one_block_kernel(
    dq_ptr, dk_ptr, dv_ptr, q_ptr, k_ptr, v_ptr, do_ptr, l_ptr, dl_ptr, lengths_ptr,
    heads, n_q, n_k,
    # strides of batch, head and row in UNITs, of column
    stride_dq, stride_dk, stride_dv, stride_q, stride_k, stride_v, stride_do,
    scale, scale_log2,
    HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
    CAUSAL: tl.constexpr, SAME_LENGTHS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    LOG2_E: tl.constexpr = 1.4426950408889634
    n_k = at_run_time(n_k)
    batch_head = tl.program_id(0)
    batch, head = batch_head // heads, batch_head % heads
    n_valid = keys_of(lengths_ptr, batch, n_k)
    n_rows = queries_of(n_q, n_valid, SAME_LENGTHS)
    offs_n = tl.arange(0, BLOCK_N)
    q_rows = (head_start(q_ptr, batch, head, stride_q, UNIT), stride_q[2], stride_q[3])
    k_rows = (head_start(k_ptr, batch, head, stride_k, UNIT), stride_k[2], stride_k[3])
    v_rows = (head_start(v_ptr, batch, head, stride_v, UNIT), stride_v[2], stride_v[3])
    do_rows = (head_start(do_ptr, batch, head, stride_do, UNIT), stride_do[2], stride_do[3])
    dq_ptr = head_start(dq_ptr, batch, head, stride_dq, UNIT)
    # Zeros behind the length: there s, dp and so ds are 0, whatever memory holds.
    k, k_rest = load_rows(k_rows, 0, n_valid, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, True)  # (BLOCK_N, D)
    v, v_rest = load_rows(v_rows, 0, n_valid, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, True)  # (BLOCK_N, D)
    dk, dk_rest = zero_rows(BLOCK_N, MAIN, REST)
    dv, dv_rest = zero_rows(BLOCK_N, MAIN, REST)
    for first_m in tl.range(0, n_q, BLOCK_M):
        offs_m = first_m + tl.arange(0, BLOCK_M)
        terms = tl.cast(batch_head, tl.int64) * n_q + offs_m
        q, q_rest = load_rows(q_rows, first_m, n_rows, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True)  # (BLOCK_M, D)
        do, do_rest = load_rows(do_rows, first_m, n_rows, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True)  # (BLOCK_M, D)
        l = tl.load(l_ptr + terms, mask=offs_m < n_rows, other=-float("inf"))
        shift = tl.where(l == -float("inf"), float("inf"), l * LOG2_E)  # a query with no key: exp2(-inf) = 0
        # Everything is turned, so that pᵀ and dsᵀ come out of one product and enter the next one from registers.
        s = matrix_products(k, k_rest, q, q_rest, REST, PRECISION)  # (BLOCK_N, BLOCK_M)
        dp = matrix_products(v, v_rest, do, do_rest, REST, PRECISION)  # (BLOCK_N, BLOCK_M)
        p = probabilities(
            s, shift[None, :], offs_m[None, :], offs_n[:, None], n_valid, n_k - n_q, scale_log2, CAUSAL, False, True
        )  # fmt: skip
        delta = tl.sum(p * dp, axis=0)  # (BLOCK_M,)
        if dl_ptr is not None:  # dL/ds = p, so a gradient of L is one more term beside dp - delta
            delta -= tl.load(dl_ptr + terms, mask=offs_m < n_rows, other=0.0)
        ds = (p * (dp - delta[None, :])).to(q.dtype)  # (BLOCK_N, BLOCK_M)
        dv, dv_rest = add_products(dv, dv_rest, p.to(do.dtype), do, do_rest, REST, PRECISION)  # (BLOCK_N, D)
        dk, dk_rest = add_products(dk, dk_rest, ds, q, q_rest, REST, PRECISION)  # (BLOCK_N, D)
        dq, dq_rest = zero_rows(BLOCK_M, MAIN, REST)
        dq, dq_rest = add_products(dq, dq_rest, tl.trans(ds), k, k_rest, REST, PRECISION)  # (BLOCK_M, D)
        dq, dq_rest = scale_rows(dq, dq_rest, tl.full((BLOCK_M,), 1.0, tl.float32) * scale, REST)
        store_rows(dq_ptr, dq, dq_rest, first_m, n_q, stride_dq, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE)

    dk, dk_rest = scale_rows(dk, dk_rest, tl.full((BLOCK_N,), 1.0, tl.float32) * scale, REST)
    dk_ptr = head_start(dk_ptr, batch, head, stride_dk, UNIT)
    dv_ptr = head_start(dv_ptr, batch, head, stride_dv, UNIT)
    store_rows(dk_ptr, dk, dk_rest, 0, n_k, stride_dk, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE)
    store_rows(dv_ptr, dv, dv_rest, 0, n_k, stride_dv, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE)


def write_in_one_block(
    dq, dk, dv, do, q, k, v, l, dl, causal: bool, scale: float, k_lengths, blocks: OneBlock, same_lengths: bool = False
) -> None:  # fmt: skip
    """Into dq, dk and dv; n_k <= blocks.n. FLOP: 10 B H n_q n_k D, all of them made, half of them counted causal."""
    B, H, n_q, D = q.shape
    n_k = k.shape[2]
    if B * H == 0:
        return
    assert k.shape[1] == H, "each head of queries has keys of its own"
    assert n_k <= blocks.n, f"{n_k} keys, {blocks}"
    main, rest = split(D)
    tensors = (dq, dk, dv, q, k, v, do)
    unit = unit_of(*tensors)
    launch(
        one_block_kernel, (B * H,),
        *tensors, l, dl if dl is None else dl.contiguous(), k_lengths,
        H, n_q, n_k,
        *(in_units(x, unit) for x in tensors),
        scale, scale * LOG2_E,
        HEAD=D, MAIN=main, REST=rest, UNIT=unit, WIDE=spans(max(blocks.m, blocks.n), main + rest, *tensors),
        CAUSAL=causal, SAME_LENGTHS=same_lengths,
        BLOCK_M=blocks.m, BLOCK_N=blocks.n, PRECISION=precision(q.dtype),
        num_warps=blocks.warps, num_stages=blocks.stages, maxnreg=blocks.registers,
    )  # fmt: skip
