"""dq = scale ds k: one program holds BLOCK_M queries and walks over the keys, as in the forward pass.

What the other pass needs of each query is made on the way: L in base 2, called shift, and delta.
"""

import triton
import triton.language as tl

from course_lib.kernels.attention.masks import head_start, key_range, keys_of, probabilities, which_head
from course_lib.kernels.attention.operands import LOG2_E, precision, spans, strides, tiles, unit
from course_lib.kernels.attention.parts import (
    add_products,
    load_rows,
    matrix_products,
    rows_to_walk,
    scale_rows,
    split,
    store_rows,
    zero_rows,
)
from course_lib.kernels.attention.tuning import Blocks

__all__ = ["dq_kernel", "write_dq"]


@triton.jit
def _row_terms(do, do_rest, o, o_rest, l_ptr, dl_ptr, offs_m, n_q, REST: tl.constexpr):
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
def _walk_keys(
    dq, dq_rest, q, q_rest, do, do_rest, shift, delta, k_rows, v_rows,
    first, end, offs_m, n_k, n_valid, diagonal, scale_log2,
    HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
    TMA: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    stages: tl.constexpr = 1 if MASKED else None  # as in the forward pass: only one of two loops may be pipelined
    for start in tl.range(first, end, BLOCK_N, num_stages=stages):
        offs_n = start + tl.arange(0, BLOCK_N)
        k, k_rest = load_rows(k_rows, start, n_k, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, MASKED, TMA)
        v, v_rest = load_rows(v_rows, start, n_k, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, MASKED, TMA)
        s = matrix_products(q, q_rest, k, k_rest, REST, PRECISION)
        p = probabilities(
            s, shift[:, None], offs_m[:, None], offs_n[None, :], n_valid, diagonal, scale_log2, CAUSAL, WHOLE, MASKED
        )  # fmt: skip
        dp = matrix_products(do, do_rest, v, v_rest, REST, PRECISION)
        ds = p * (dp - delta[:, None])
        dq, dq_rest = add_products(dq, dq_rest, ds.to(k.dtype), k, k_rest, REST, PRECISION)
    return dq, dq_rest


@triton.jit
def dq_kernel(
    dq_ptr, shift_ptr, delta_ptr, q_ptr, k_ptr, v_ptr, o_ptr, do_ptr, l_ptr, dl_ptr,
    k_tiles, v_tiles, lengths_ptr,
    heads, n_q, n_k, stride_terms,
    stride_dq_b, stride_dq_h, stride_dq_m, stride_dq_d,
    stride_q_b, stride_q_h, stride_q_m, stride_q_d,
    stride_k_b, stride_k_h, stride_k_n, stride_k_d,
    stride_v_b, stride_v_h, stride_v_n, stride_v_d,
    stride_o_b, stride_o_h, stride_o_m, stride_o_d,
    stride_do_b, stride_do_h, stride_do_m, stride_do_d,
    scale, scale_log2,
    GROUP: tl.constexpr, HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, TMA: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(n_q, BLOCK_M)
    block, batch, head = which_head(heads, blocks)
    if CAUSAL:
        block = blocks - 1 - block
    first_m = block * BLOCK_M
    offs_m = first_m + tl.arange(0, BLOCK_M)
    n_valid = keys_of(lengths_ptr, batch, n_k)
    diagonal = n_k - n_q
    full, end = key_range(first_m, n_valid, diagonal, CAUSAL, BLOCK_M, BLOCK_N)

    q_rows = (head_start(q_ptr, batch, head, stride_q_b, stride_q_h, UNIT), stride_q_m, stride_q_d)
    o_rows = (head_start(o_ptr, batch, head, stride_o_b, stride_o_h, UNIT), stride_o_m, stride_o_d)
    do_rows = (head_start(do_ptr, batch, head, stride_do_b, stride_do_h, UNIT), stride_do_m, stride_do_d)
    k_ptr = head_start(k_ptr, batch, head // GROUP, stride_k_b, stride_k_h, UNIT)
    v_ptr = head_start(v_ptr, batch, head // GROUP, stride_v_b, stride_v_h, UNIT)
    k_rows = rows_to_walk(k_ptr, k_tiles, batch, head // GROUP, stride_k_n, stride_k_d, TMA)
    v_rows = rows_to_walk(v_ptr, v_tiles, batch, head // GROUP, stride_v_n, stride_v_d, TMA)
    q, q_rest = load_rows(q_rows, first_m, n_q, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True)
    do, do_rest = load_rows(do_rows, first_m, n_q, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True)
    o, o_rest = load_rows(o_rows, first_m, n_q, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True)
    terms = tl.cast(batch * heads + head, tl.int64) * stride_terms + offs_m
    row = tl.cast(batch * heads + head, tl.int64) * n_q
    dl_row = dl_ptr
    if dl_ptr is not None:
        dl_row = dl_ptr + row
    shift, delta = _row_terms(do, do_rest, o, o_rest, l_ptr + row, dl_row, offs_m, n_q, REST)
    tl.store(shift_ptr + terms, shift, mask=offs_m < n_q)
    tl.store(delta_ptr + terms, delta, mask=offs_m < n_q)

    dq, dq_rest = zero_rows(BLOCK_M, MAIN, REST)
    dq, dq_rest = _walk_keys(
        dq, dq_rest, q, q_rest, do, do_rest, shift, delta, k_rows, v_rows,
        0, full, offs_m, n_k, n_valid, diagonal, scale_log2,
        HEAD, MAIN, REST, UNIT, WIDE, TMA, CAUSAL, WHOLE, False, BLOCK_N, PRECISION,
    )  # fmt: skip
    if CAUSAL or not WHOLE:
        dq, dq_rest = _walk_keys(
            dq, dq_rest, q, q_rest, do, do_rest, shift, delta, k_rows, v_rows,
            full, end, offs_m, n_k, n_valid, diagonal, scale_log2,
            HEAD, MAIN, REST, UNIT, WIDE, TMA, CAUSAL, WHOLE, True, BLOCK_N, PRECISION,
        )  # fmt: skip

    factor = tl.full((BLOCK_M,), 1.0, tl.float32) * scale
    dq, dq_rest = scale_rows(dq, dq_rest, factor, REST)
    dq_ptr = head_start(dq_ptr, batch, head, stride_dq_b, stride_dq_h, UNIT)
    store_rows(dq_ptr, dq, dq_rest, first_m, n_q, stride_dq_m, stride_dq_d, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE)


def write_dq(dq, shift, delta, do, q, k, v, o, l, dl, causal: bool, scale: float, k_lengths, blocks: Blocks) -> None:
    """Into dq like q, and shift and delta (B H, n_q) fp32, rows apart by any stride.

    FLOP: 6 B H n_q n_k D, half of it causal.
    """
    (B, H, n_q, D), (kv_heads, n_k) = q.shape, k.shape[1:3]
    if dq.numel() == 0:
        return
    main, rest = split(D)
    tensors = (dq, q, k, v, o, do)
    step = unit(*tensors)
    walked = tiles(blocks.n, k, v)
    dq_kernel[(triton.cdiv(n_q, blocks.m) * B * H,)](
        dq, shift, delta, q, k, v, o, do, l, dl if dl is None else dl.contiguous(),
        *walked, k_lengths,
        H, n_q, n_k, shift.stride(0),
        *(stride for x in tensors for stride in strides(x, step)),
        scale, scale * LOG2_E,
        GROUP=H // kv_heads, HEAD=D, MAIN=main, REST=rest,
        UNIT=step, WIDE=spans(max(blocks.m, blocks.n), main + rest, *tensors), TMA=walked[0] is not None,
        CAUSAL=causal, WHOLE=k_lengths is None and n_k % blocks.n == 0,
        BLOCK_M=blocks.m, BLOCK_N=blocks.n, PRECISION=precision(q.dtype),
        num_warps=blocks.warps, num_stages=blocks.stages, maxnreg=blocks.registers,
    )  # fmt: skip
