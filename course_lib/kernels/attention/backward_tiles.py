"""What programs of the backward pass in two passes do: dq of a block of queries, dk and dv of a block of keys.

backward.py launches them one after the other, side_by_side.py at once, and says what they compute.
"""

import triton
import triton.language as tl

from course_lib.kernels.attention.masks import (
    head_start,
    key_range,
    keys_of,
    probabilities,
    queries_of,
    query_range,
)
from course_lib.kernels.attention.rows import (
    add_products,
    load_rows,
    matrix_products,
    rows_to_walk,
    scale_rows,
    store_rows,
    zero_rows,
)
from course_lib.kernels.attention.terms import load_terms, terms_of, terms_to_walk

__all__ = ["dkdv_of_keys", "dq_of_queries"]


@triton.jit
def _walk_keys(
    dq, dq_rest, q, q_rest, do, do_rest, shift, delta, k_rows, v_rows,
    first, end, offs_m, n_valid, diagonal, scale_log2,
    HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
    TMA: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    stages: tl.constexpr = 1 if MASKED else None  # as in the forward pass: only one of two loops may be pipelined
    CUT: tl.constexpr = PADDED and MASKED  # as there: a probability of 0 hides no NaN
    for start in tl.range(first, end, BLOCK_N, num_stages=stages):
        offs_n = start + tl.arange(0, BLOCK_N)
        k, k_rest = load_rows(
            k_rows, start, n_valid, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, MASKED, TMA, CUT
        )  # (BLOCK_N, D)
        v, v_rest = load_rows(
            v_rows, start, n_valid, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, MASKED, TMA, CUT
        )  # (BLOCK_N, D)
        s = matrix_products(q, q_rest, k, k_rest, REST, PRECISION)  # (BLOCK_M, BLOCK_N)
        p = probabilities(
            s, shift[:, None], offs_m[:, None], offs_n[None, :], n_valid, diagonal, scale_log2, CAUSAL, WHOLE, MASKED
        )  # fmt: skip
        dp = matrix_products(do, do_rest, v, v_rest, REST, PRECISION)  # (BLOCK_M, BLOCK_N)
        ds = p * (dp - delta[:, None])  # (BLOCK_M, BLOCK_N)
        dq, dq_rest = add_products(dq, dq_rest, ds.to(k.dtype), k, k_rest, REST, PRECISION)  # (BLOCK_M, D)
    return dq, dq_rest


@triton.jit
def dq_of_queries(
    dq_ptr, shift_ptr, delta_ptr, q_ptr, k_ptr, v_ptr, o_ptr, do_ptr, l_ptr, dl_ptr,
    k_tiles, v_tiles, lengths_ptr,
    block, batch, head, heads, n_q, n_k, stride_terms,
    stride_dq, stride_q, stride_k, stride_v, stride_o, stride_do,
    scale, scale_log2,
    GROUP: tl.constexpr, HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, TMA: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
    SAME_LENGTHS: tl.constexpr = False, TERMS_THERE: tl.constexpr = False,
):  # fmt: skip
    """TERMS_THERE: shift and delta were made before; else they are made here, of o and do, and kept for the others."""
    PADDED: tl.constexpr = lengths_ptr is not None
    if CAUSAL:
        block = tl.cdiv(n_q, BLOCK_M) - 1 - block
    first_m = block * BLOCK_M
    offs_m = first_m + tl.arange(0, BLOCK_M)
    n_valid = keys_of(lengths_ptr, batch, n_k)
    n_rows = queries_of(n_q, n_valid, SAME_LENGTHS)
    if SAME_LENGTHS:
        n_valid = tl.where(first_m < n_rows, n_valid, 0)
    diagonal = n_k - n_q
    full, end = key_range(first_m, n_valid, diagonal, CAUSAL, BLOCK_M, BLOCK_N)

    q_rows = (head_start(q_ptr, batch, head, stride_q, UNIT), stride_q[2], stride_q[3])
    o_rows = (head_start(o_ptr, batch, head, stride_o, UNIT), stride_o[2], stride_o[3])
    do_rows = (head_start(do_ptr, batch, head, stride_do, UNIT), stride_do[2], stride_do[3])
    k_ptr = head_start(k_ptr, batch, head // GROUP, stride_k, UNIT)
    v_ptr = head_start(v_ptr, batch, head // GROUP, stride_v, UNIT)
    k_rows = rows_to_walk(k_ptr, k_tiles, batch, head // GROUP, stride_k, TMA)
    v_rows = rows_to_walk(v_ptr, v_tiles, batch, head // GROUP, stride_v, TMA)
    q, q_rest = load_rows(q_rows, first_m, n_rows, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True)
    do, do_rest = load_rows(do_rows, first_m, n_rows, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True)
    if TERMS_THERE:
        terms = tl.cast(batch * heads + head, tl.int64) * stride_terms + offs_m
        shift = tl.load(shift_ptr + terms, mask=offs_m < n_q, other=0.0)
        delta = tl.load(delta_ptr + terms, mask=offs_m < n_q, other=0.0)
    else:
        o, o_rest = load_rows(o_rows, first_m, n_rows, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True)
        terms = tl.cast(batch * heads + head, tl.int64) * stride_terms + offs_m
        row = tl.cast(batch * heads + head, tl.int64) * n_q
        dl_row = dl_ptr
        if dl_ptr is not None:
            dl_row = dl_ptr + row
        shift, delta = terms_of(do, do_rest, o, o_rest, l_ptr + row, dl_row, offs_m, n_rows, REST)
        # Behind the length inf and 0: where the copy engine fetches q and do there, the other pass relies on it.
        tl.store(shift_ptr + terms, shift, mask=offs_m < n_q)
        tl.store(delta_ptr + terms, delta, mask=offs_m < n_q)

    dq, dq_rest = zero_rows(BLOCK_M, MAIN, REST)
    dq, dq_rest = _walk_keys(
        dq, dq_rest, q, q_rest, do, do_rest, shift, delta, k_rows, v_rows,
        0, full, offs_m, n_valid, diagonal, scale_log2,
        HEAD, MAIN, REST, UNIT, WIDE, TMA, CAUSAL, WHOLE, PADDED, False, BLOCK_N, PRECISION,
    )  # fmt: skip
    if CAUSAL or not WHOLE:
        dq, dq_rest = _walk_keys(
            dq, dq_rest, q, q_rest, do, do_rest, shift, delta, k_rows, v_rows,
            full, end, offs_m, n_valid, diagonal, scale_log2,
            HEAD, MAIN, REST, UNIT, WIDE, TMA, CAUSAL, WHOLE, PADDED, True, BLOCK_N, PRECISION,
        )  # fmt: skip

    factor = tl.full((BLOCK_M,), 1.0, tl.float32) * scale
    dq, dq_rest = scale_rows(dq, dq_rest, factor, REST)
    dq_ptr = head_start(dq_ptr, batch, head, stride_dq, UNIT)
    store_rows(dq_ptr, dq, dq_rest, first_m, n_q, stride_dq, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE)


@triton.jit
def _walk_queries(
    dk, dk_rest, dv, dv_rest, k, k_rest, v, v_rest, q_rows, do_rows, shift_row, delta_row,
    first, end, offs_n, n_q, n_valid, diagonal, scale_log2,
    HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
    TMA: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_M: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # Everything is turned: keys go down, queries go across, so that pᵀ and dsᵀ come out of one product and enter the
    # next one from registers.
    stages: tl.constexpr = 1 if MASKED and not TMA else None  # both loops, where the copy engine feeds them: 4 % faster
    for start in tl.range(first, end, BLOCK_M, num_stages=stages):
        offs_m = start + tl.arange(0, BLOCK_M)
        q, q_rest = load_rows(q_rows, start, n_q, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True, TMA)  # (BLOCK_M, D)
        shift = load_terms(shift_row, start, offs_m, n_q, BLOCK_M, TMA)  # (BLOCK_M,)
        s = matrix_products(k, k_rest, q, q_rest, REST, PRECISION)  # (BLOCK_N, BLOCK_M)
        do, do_rest = load_rows(do_rows, start, n_q, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True, TMA)  # (BLOCK_M, D)
        # dp does not wait for p: the tensor cores make it while the exponentials are taken.
        dp = matrix_products(v, v_rest, do, do_rest, REST, PRECISION)  # (BLOCK_N, BLOCK_M)
        p = probabilities(
            s, shift[None, :], offs_m[None, :], offs_n[:, None], n_valid, diagonal, scale_log2, CAUSAL, WHOLE, MASKED
        )  # fmt: skip
        delta = load_terms(delta_row, start, offs_m, n_q, BLOCK_M, TMA)  # (BLOCK_M,)
        ds = (p * (dp - delta[None, :])).to(q.dtype)  # (BLOCK_N, BLOCK_M)
        dv, dv_rest = add_products(dv, dv_rest, p.to(do.dtype), do, do_rest, REST, PRECISION)  # (BLOCK_N, D)
        dk, dk_rest = add_products(dk, dk_rest, ds, q, q_rest, REST, PRECISION)  # (BLOCK_N, D)
    return dk, dk_rest, dv, dv_rest


@triton.jit
def dkdv_of_keys(
    dk_ptr, dv_ptr, q_ptr, k_ptr, v_ptr, do_ptr, shift_ptr, delta_ptr,
    q_tiles, do_tiles, shift_tiles, delta_tiles, lengths_ptr,
    block, batch, part, kv_heads, n_q, n_k, stride_terms,
    stride_dk, stride_dv, stride_q, stride_k, stride_v, stride_do,
    scale, scale_log2,
    GROUP: tl.constexpr, PARTS: tl.constexpr, HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, TMA: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, SAME_LENGTHS: tl.constexpr = False,
):  # fmt: skip
    """GROUP query heads share a head of keys; a program walks over GROUP / PARTS of them."""
    kv_head = part // PARTS
    first_n = block * BLOCK_N
    offs_n = first_n + tl.arange(0, BLOCK_N)
    n_valid = keys_of(lengths_ptr, batch, n_k)
    diagonal = n_k - n_q
    n_q = queries_of(n_q, n_valid, SAME_LENGTHS)
    first, full, end = query_range(first_n, n_q, n_valid, diagonal, CAUSAL, BLOCK_M, BLOCK_N)

    k_rows = (head_start(k_ptr, batch, kv_head, stride_k, UNIT), stride_k[2], stride_k[3])
    v_rows = (head_start(v_ptr, batch, kv_head, stride_v, UNIT), stride_v[2], stride_v[3])
    # Zeros behind the length: there s, dp and so ds are 0, whatever memory holds.
    k, k_rest = load_rows(k_rows, first_n, n_valid, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, True)
    v, v_rest = load_rows(v_rows, first_n, n_valid, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, True)

    dk, dk_rest = zero_rows(BLOCK_N, MAIN, REST)
    dv, dv_rest = zero_rows(BLOCK_N, MAIN, REST)
    for member in range(GROUP // PARTS):  # the query heads that share these keys
        head = part * (GROUP // PARTS) + member
        row = batch * kv_heads * GROUP + head
        shift_row = terms_to_walk(shift_ptr, shift_tiles, row, stride_terms, TMA)
        delta_row = terms_to_walk(delta_ptr, delta_tiles, row, stride_terms, TMA)
        q_head = head_start(q_ptr, batch, head, stride_q, UNIT)
        do_head = head_start(do_ptr, batch, head, stride_do, UNIT)
        q_rows = rows_to_walk(q_head, q_tiles, batch, head, stride_q, TMA)
        do_rows = rows_to_walk(do_head, do_tiles, batch, head, stride_do, TMA)
        # The pipelined loop comes first: the other way round the assembler serializes its wgmma (C7515).
        dk, dk_rest, dv, dv_rest = _walk_queries(
            dk, dk_rest, dv, dv_rest, k, k_rest, v, v_rest, q_rows, do_rows, shift_row, delta_row,
            full, end, offs_n, n_q, n_valid, diagonal, scale_log2,
            HEAD, MAIN, REST, UNIT, WIDE, TMA, CAUSAL, WHOLE, False, BLOCK_M, PRECISION,
        )  # fmt: skip
        if CAUSAL or REST or not WHOLE:
            dk, dk_rest, dv, dv_rest = _walk_queries(
                dk, dk_rest, dv, dv_rest, k, k_rest, v, v_rest, q_rows, do_rows, shift_row, delta_row,
                first, full, offs_n, n_q, n_valid, diagonal, scale_log2,
                HEAD, MAIN, REST, UNIT, WIDE, TMA, CAUSAL, WHOLE, True, BLOCK_M, PRECISION,
            )  # fmt: skip

    factor = tl.full((BLOCK_N,), 1.0, tl.float32) * scale
    dk, dk_rest = scale_rows(dk, dk_rest, factor, REST)
    dk_ptr = head_start(dk_ptr, batch, part, stride_dk, UNIT)
    dv_ptr = head_start(dv_ptr, batch, part, stride_dv, UNIT)
    store_rows(dk_ptr, dk, dk_rest, first_n, n_k, stride_dk, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE)
    store_rows(dv_ptr, dv, dv_rest, first_n, n_k, stride_dv, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE)
