"""Whole rows at once for one row of x, and tensor cores with four stages for more: each element asks for no scale."""

import torch
import triton
import triton.language as tl


@triton.jit
def _scale_of(e):
    """2^(e - 133) as fp32, NaN for 255. e: a block of int32."""
    normal = (tl.maximum(e, 7) - 6) << 23
    subnormal = (1 << 16) << tl.minimum(e, 6)  # one bit that has left the exponent and gone down the fraction
    bits = tl.where(e > 6, normal, subnormal)
    return tl.where(e == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def _gemv_kernel(
    out_ptr, x_ptr, m_ptr, e_ptr,
    N, K, groups,
    stride_out, stride_x, stride_m,
    GROUP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """One row of x with BLOCK_N rows of weights, BLOCK_G groups at a time, without tensor cores."""
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1).to(tl.int64)
    mask_n, wide_n = offs_n < N, offs_n.to(tl.int64)
    acc = tl.zeros((BLOCK_N,), tl.float32)
    for first in range(0, groups, BLOCK_G):
        offs_g = first + tl.arange(0, BLOCK_G)
        offs_k = offs_g[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        mask_k = offs_k < K
        x = tl.load(x_ptr + row * stride_x + offs_k, mask=mask_k, other=0.0).to(tl.float32)
        m_ptrs = m_ptr + wide_n[:, None, None] * stride_m + offs_k[None, :, :]
        m = tl.load(m_ptrs, mask=mask_n[:, None, None] & mask_k[None, :, :], other=0).to(tl.float32)
        mask_e = mask_n[:, None] & (offs_g < groups)[None, :]
        e = tl.load(e_ptr + wide_n[:, None] * groups + offs_g[None, :], mask=mask_e, other=0).to(tl.int32)
        acc += tl.sum(tl.sum(m * x[None, :, :], axis=2) * _scale_of(e), axis=1)
    tl.store(out_ptr + row * stride_out + offs_n, acc.to(out_ptr.dtype.element_ty), mask=mask_n)


@triton.jit
def _gemm_kernel(
    parts_ptr, x_ptr, m_ptr, e_ptr,
    M, N, K, groups, k_a_part,
    stride_x, stride_m,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Up to BLOCK_M rows of x on tensor cores: part program_id(1) of K, into parts (parts, M, N), fp32."""
    INNER: tl.constexpr = BLOCK_K if BLOCK_K < GROUP else GROUP
    offs_n, offs_m = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_M)
    part = tl.program_id(1)
    mask_n, mask_m, wide_n = offs_n < N, offs_m < M, offs_n.to(tl.int64)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k in range(part * k_a_part, min(K, (part + 1) * k_a_part), BLOCK_K):
        offs_k = k + tl.arange(0, BLOCK_K)
        offs_g = k // GROUP + tl.arange(0, BLOCK_K // INNER)
        mask_k = offs_k < K
        m_ptrs = m_ptr + wide_n[:, None] * stride_m + offs_k[None, :]
        m = tl.load(m_ptrs, mask=mask_n[:, None] & mask_k[None, :], other=0)
        mask_e = mask_n[:, None] & (offs_g < groups)[None, :]
        e = tl.load(e_ptr + wide_n[:, None] * groups + offs_g[None, :], mask=mask_e, other=0).to(tl.int32)
        x_ptrs = x_ptr + offs_m.to(tl.int64)[None, :] * stride_x + offs_k[:, None]
        x = tl.load(x_ptrs, mask=mask_m[None, :] & mask_k[:, None], other=0.0)
        w = tl.reshape(m, (BLOCK_N, BLOCK_K // INNER, INNER)).to(tl.float32) * _scale_of(e)[:, :, None]
        acc = tl.dot(tl.reshape(w, (BLOCK_N, BLOCK_K)).to(x.dtype), x, acc, input_precision="ieee")
    at = (part.to(tl.int64) * M + offs_m[None, :]) * N + offs_n[:, None]
    tl.store(parts_ptr + at, acc, mask=mask_n[:, None] & mask_m[None, :])


@triton.jit
def _sum_kernel(out_ptr, parts_ptr, M, N, stride_out, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """out = the sum of parts (parts, M, N), in their order."""
    row = tl.program_id(0).to(tl.int64)
    offs_n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        acc += tl.load(parts_ptr + (tl.cast(part, tl.int64) * M + row) * N + offs_n, mask=offs_n < N, other=0.0)
    tl.store(out_ptr + row * stride_out + offs_n, acc.to(out_ptr.dtype.element_ty), mask=offs_n < N)


def gemv(x, mantissas, exponents, group, out):
    """Fill out."""
    (M, K), N, groups = x.shape, mantissas.shape[0], exponents.shape[1]
    if M == 1:
        block_n, block_k = (4, 4096) if x.is_cuda else (16, 128)
        block_k = max(group, min(block_k, triton.next_power_of_2(K)))
        _gemv_kernel[(triton.cdiv(N, block_n), M)](
            out, x, mantissas, exponents,
            N, K, groups,
            out.stride(0), x.stride(0), mantissas.stride(0),
            GROUP=group, BLOCK_N=block_n, BLOCK_G=block_k // group,
        )  # fmt: skip
        return
    block_n, block_k, stages = (64, 128, 4) if x.is_cuda else (16, 64, 1)
    split = max(1, min(8, 528 * block_n // N, K // (4 * block_k))) if x.is_cuda else 2  # 4 programs a multiprocessor
    a_part = triton.cdiv(triton.cdiv(K, block_k), split) * block_k
    split = triton.cdiv(K, a_part)
    parts = torch.empty(split, M, N, dtype=torch.float32, device=x.device)
    _gemm_kernel[(triton.cdiv(N, block_n), split)](
        parts, x, mantissas, exponents,
        M, N, K, groups, a_part,
        x.stride(0), mantissas.stride(0),
        GROUP=group, BLOCK_M=16, BLOCK_N=block_n, BLOCK_K=block_k, num_stages=stages,
    )  # fmt: skip
    block = 1024 if x.is_cuda else 64
    _sum_kernel[(M, triton.cdiv(N, block))](out, parts, M, N, out.stride(0), PARTS=split, BLOCK=block)
