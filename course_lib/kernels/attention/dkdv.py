"""dk = scale dsᵀ q and dv = pᵀ do: one program holds BLOCK_N keys and walks over the queries that see them."""

import torch
import triton
import triton.language as tl

from course_lib.kernels.attention.masks import head_start, keys_of, probabilities, query_range, which_head
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

__all__ = ["dkdv_kernel", "gradients_of_k_and_v"]


@triton.jit
def _walk_queries(
    dk, dk_rest, dv, dv_rest, k, k_rest, v, v_rest, q_ptr, do_ptr, shift_ptr, delta_ptr,
    first, end, offs_n, n_q, n_valid, diagonal, scale_log2,
    stride_q_m, stride_q_d, stride_do_m, stride_do_d,
    HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, BLOCK_M: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # Everything is turned: keys go down, queries go across, so that pᵀ and dsᵀ come out of one product and enter the
    # next one from registers.
    stages: tl.constexpr = 1 if MASKED else None
    for start in tl.range(first, end, BLOCK_M, num_stages=stages):
        offs_m = start + tl.arange(0, BLOCK_M)
        q, q_rest = load_rows(q_ptr, start, n_q, stride_q_m, stride_q_d, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True)
        shift = tl.load(shift_ptr + offs_m, mask=offs_m < n_q, other=float("inf"))
        s = matrix_products(k, k_rest, q, q_rest, REST, PRECISION)
        p = probabilities(
            s, shift[None, :], offs_m[None, :], offs_n[:, None], n_valid, diagonal, scale_log2, CAUSAL, MASKED
        )  # fmt: skip
        do, do_rest = load_rows(
            do_ptr, start, n_q, stride_do_m, stride_do_d, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True
        )  # fmt: skip
        dv, dv_rest = add_products(dv, dv_rest, p.to(do.dtype), do, do_rest, REST, PRECISION)
        delta = tl.load(delta_ptr + offs_m, mask=offs_m < n_q, other=0.0)
        dp = matrix_products(v, v_rest, do, do_rest, REST, PRECISION)
        ds = p * (dp - delta[None, :])
        dk, dk_rest = add_products(dk, dk_rest, ds.to(q.dtype), q, q_rest, REST, PRECISION)
    return dk, dk_rest, dv, dv_rest


@triton.jit
def dkdv_kernel(
    dk_ptr, dv_ptr, q_ptr, k_ptr, v_ptr, do_ptr, shift_ptr, delta_ptr, lengths_ptr,
    kv_heads, n_q, n_k,
    stride_dk_b, stride_dk_h, stride_dk_n, stride_dk_d,
    stride_dv_b, stride_dv_h, stride_dv_n, stride_dv_d,
    stride_q_b, stride_q_h, stride_q_m, stride_q_d,
    stride_k_b, stride_k_h, stride_k_n, stride_k_d,
    stride_v_b, stride_v_h, stride_v_n, stride_v_d,
    stride_do_b, stride_do_h, stride_do_m, stride_do_d,
    scale, scale_log2,
    GROUP: tl.constexpr, HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    block, batch, kv_head = which_head(kv_heads, tl.cdiv(n_k, BLOCK_N))
    first_n = block * BLOCK_N
    offs_n = first_n + tl.arange(0, BLOCK_N)
    n_valid = keys_of(lengths_ptr, batch, n_k)
    diagonal = n_k - n_q
    first, full, end = query_range(first_n, n_q, n_valid, diagonal, CAUSAL, BLOCK_M, BLOCK_N)

    k_ptr = head_start(k_ptr, batch, kv_head, stride_k_b, stride_k_h, UNIT)
    v_ptr = head_start(v_ptr, batch, kv_head, stride_v_b, stride_v_h, UNIT)
    k, k_rest = load_rows(k_ptr, first_n, n_k, stride_k_n, stride_k_d, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, True)
    v, v_rest = load_rows(v_ptr, first_n, n_k, stride_v_n, stride_v_d, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, True)

    dk, dk_rest = zero_rows(BLOCK_N, MAIN, REST)
    dv, dv_rest = zero_rows(BLOCK_N, MAIN, REST)
    for member in range(GROUP):  # the query heads that share these keys
        head = kv_head * GROUP + member
        row = (tl.cast(batch, tl.int64) * kv_heads * GROUP + head) * n_q
        q_head = head_start(q_ptr, batch, head, stride_q_b, stride_q_h, UNIT)
        do_head = head_start(do_ptr, batch, head, stride_do_b, stride_do_h, UNIT)
        # The pipelined loop comes first: the other way round the assembler serializes its wgmma (C7515).
        dk, dk_rest, dv, dv_rest = _walk_queries(
            dk, dk_rest, dv, dv_rest, k, k_rest, v, v_rest, q_head, do_head, shift_ptr + row, delta_ptr + row,
            full, end, offs_n, n_q, n_valid, diagonal, scale_log2,
            stride_q_m, stride_q_d, stride_do_m, stride_do_d,
            HEAD, MAIN, REST, UNIT, WIDE, CAUSAL, False, BLOCK_M, PRECISION,
        )  # fmt: skip
        dk, dk_rest, dv, dv_rest = _walk_queries(
            dk, dk_rest, dv, dv_rest, k, k_rest, v, v_rest, q_head, do_head, shift_ptr + row, delta_ptr + row,
            first, full, offs_n, n_q, n_valid, diagonal, scale_log2,
            stride_q_m, stride_q_d, stride_do_m, stride_do_d,
            HEAD, MAIN, REST, UNIT, WIDE, CAUSAL, True, BLOCK_M, PRECISION,
        )  # fmt: skip

    factor = tl.full((BLOCK_N,), 1.0, tl.float32) * scale
    dk, dk_rest = scale_rows(dk, dk_rest, factor, REST)
    dk_ptr = head_start(dk_ptr, batch, kv_head, stride_dk_b, stride_dk_h, UNIT)
    dv_ptr = head_start(dv_ptr, batch, kv_head, stride_dv_b, stride_dv_h, UNIT)
    store_rows(dk_ptr, dk, dk_rest, first_n, n_k, stride_dk_n, stride_dk_d, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE)
    store_rows(dv_ptr, dv, dv_rest, first_n, n_k, stride_dv_n, stride_dv_d, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE)


def gradients_of_k_and_v(
    do, q, k, v, shift, delta, causal: bool, scale: float, k_lengths, blocks: Blocks
) -> tuple[torch.Tensor, torch.Tensor]:
    """dk, dv like k and v. FLOP: 8 B H n_q n_k D, half of it causal."""
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    (B, H, n_q, D), (kv_heads, n_k) = q.shape, k.shape[1:3]
    if dk.numel() == 0:
        return dk, dv
    main, rest = split(D)
    tensors = (dk, dv, q, k, v, do)
    step = unit(*tensors)
    dkdv_kernel[(triton.cdiv(n_k, blocks.n) * B * kv_heads,)](
        dk, dv, q, k, v, do, shift, delta, k_lengths,
        kv_heads, n_q, n_k,
        *(stride for x in tensors for stride in strides(x, step)),
        scale, scale * LOG2_E,
        GROUP=H // kv_heads, HEAD=D, MAIN=main, REST=rest,
        UNIT=step, WIDE=spans(max(blocks.m, blocks.n), main + rest, *tensors), CAUSAL=causal,
        BLOCK_M=blocks.m, BLOCK_N=blocks.n, PRECISION=precision(q.dtype),
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    return dk, dv
