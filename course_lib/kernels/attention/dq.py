"""dq = scale ds k: one program holds BLOCK_M queries and walks over the keys, as in the forward pass."""

import torch
import triton
import triton.language as tl

from course_lib.kernels.attention.masks import head_start, key_range, keys_of, probabilities, which_head
from course_lib.kernels.attention.operands import LOG2_E, precision, spans, strides, unit
from course_lib.kernels.attention.parts import (
    add_products,
    load_rows,
    matrix_products,
    scale_rows,
    split,
    store_rows,
    zero_rows,
)
from course_lib.kernels.attention.tuning import Blocks

__all__ = ["dq_kernel", "gradient_of_q"]


@triton.jit
def _walk_keys(
    dq, dq_rest, q, q_rest, do, do_rest, shift, delta, k_ptr, v_ptr,
    first, end, offs_m, n_k, n_valid, diagonal, scale_log2,
    stride_k_n, stride_k_d, stride_v_n, stride_v_d,
    HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    stages: tl.constexpr = 1 if MASKED else None  # as in the forward pass: only one of two loops may be pipelined
    for start in tl.range(first, end, BLOCK_N, num_stages=stages):
        offs_n = start + tl.arange(0, BLOCK_N)
        k, k_rest = load_rows(
            k_ptr, start, n_k, stride_k_n, stride_k_d, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, MASKED
        )  # fmt: skip
        v, v_rest = load_rows(
            v_ptr, start, n_k, stride_v_n, stride_v_d, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, MASKED
        )  # fmt: skip
        s = matrix_products(q, q_rest, k, k_rest, REST, PRECISION)
        p = probabilities(
            s, shift[:, None], offs_m[:, None], offs_n[None, :], n_valid, diagonal, scale_log2, CAUSAL, MASKED
        )  # fmt: skip
        dp = matrix_products(do, do_rest, v, v_rest, REST, PRECISION)
        ds = p * (dp - delta[:, None])
        dq, dq_rest = add_products(dq, dq_rest, ds.to(k.dtype), k, k_rest, REST, PRECISION)
    return dq, dq_rest


@triton.jit
def dq_kernel(
    dq_ptr, q_ptr, k_ptr, v_ptr, do_ptr, shift_ptr, delta_ptr, lengths_ptr,
    heads, n_q, n_k,
    stride_dq_b, stride_dq_h, stride_dq_m, stride_dq_d,
    stride_q_b, stride_q_h, stride_q_m, stride_q_d,
    stride_k_b, stride_k_h, stride_k_n, stride_k_d,
    stride_v_b, stride_v_h, stride_v_n, stride_v_d,
    stride_do_b, stride_do_h, stride_do_m, stride_do_d,
    scale, scale_log2,
    GROUP: tl.constexpr, HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, CAUSAL: tl.constexpr,
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

    q_ptr = head_start(q_ptr, batch, head, stride_q_b, stride_q_h, UNIT)
    do_ptr = head_start(do_ptr, batch, head, stride_do_b, stride_do_h, UNIT)
    k_ptr = head_start(k_ptr, batch, head // GROUP, stride_k_b, stride_k_h, UNIT)
    v_ptr = head_start(v_ptr, batch, head // GROUP, stride_v_b, stride_v_h, UNIT)
    row = (tl.cast(batch, tl.int64) * heads + head) * n_q
    q, q_rest = load_rows(q_ptr, first_m, n_q, stride_q_m, stride_q_d, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True)
    do, do_rest = load_rows(
        do_ptr, first_m, n_q, stride_do_m, stride_do_d, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True
    )  # fmt: skip
    shift = tl.load(shift_ptr + row + offs_m, mask=offs_m < n_q, other=float("inf"))
    delta = tl.load(delta_ptr + row + offs_m, mask=offs_m < n_q, other=0.0)

    dq, dq_rest = zero_rows(BLOCK_M, MAIN, REST)
    dq, dq_rest = _walk_keys(
        dq, dq_rest, q, q_rest, do, do_rest, shift, delta, k_ptr, v_ptr,
        0, full, offs_m, n_k, n_valid, diagonal, scale_log2,
        stride_k_n, stride_k_d, stride_v_n, stride_v_d,
        HEAD, MAIN, REST, UNIT, WIDE, CAUSAL, False, BLOCK_N, PRECISION,
    )  # fmt: skip
    dq, dq_rest = _walk_keys(
        dq, dq_rest, q, q_rest, do, do_rest, shift, delta, k_ptr, v_ptr,
        full, end, offs_m, n_k, n_valid, diagonal, scale_log2,
        stride_k_n, stride_k_d, stride_v_n, stride_v_d,
        HEAD, MAIN, REST, UNIT, WIDE, CAUSAL, True, BLOCK_N, PRECISION,
    )  # fmt: skip

    factor = tl.full((BLOCK_M,), 1.0, tl.float32) * scale
    dq, dq_rest = scale_rows(dq, dq_rest, factor, REST)
    dq_ptr = head_start(dq_ptr, batch, head, stride_dq_b, stride_dq_h, UNIT)
    store_rows(dq_ptr, dq, dq_rest, first_m, n_q, stride_dq_m, stride_dq_d, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE)


def gradient_of_q(do, q, k, v, shift, delta, causal: bool, scale: float, k_lengths, blocks: Blocks) -> torch.Tensor:
    """dq like q. FLOP: 6 B H n_q n_k D, half of it causal."""
    dq = torch.empty_like(q)
    (B, H, n_q, D), (kv_heads, n_k) = q.shape, k.shape[1:3]
    if dq.numel() == 0:
        return dq
    main, rest = split(D)
    tensors = (dq, q, k, v, do)
    step = unit(*tensors)
    dq_kernel[(triton.cdiv(n_q, blocks.m) * B * H,)](
        dq, q, k, v, do, shift, delta, k_lengths,
        H, n_q, n_k,
        *(stride for x in tensors for stride in strides(x, step)),
        scale, scale * LOG2_E,
        GROUP=H // kv_heads, HEAD=D, MAIN=main, REST=rest,
        UNIT=step, WIDE=spans(max(blocks.m, blocks.n), main + rest, *tensors), CAUSAL=causal,
        BLOCK_M=blocks.m, BLOCK_N=blocks.n, PRECISION=precision(q.dtype),
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    return dq
