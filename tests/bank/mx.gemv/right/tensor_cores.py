"""On tensor cores, K cut into parts that a second kernel adds."""

import torch
import triton
import triton.language as tl


@triton.jit
def _scale(e):
    bits = tl.where(e > 6, (tl.maximum(e, 7) - 6) << 23, (1 << 16) << tl.minimum(e, 6))
    return tl.where(e == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def _gemm_kernel(
    out_ptr, x_ptr, m_ptr, e_ptr,
    M, N, K, groups, k_a_part,
    stride_part, stride_out, stride_x, stride_m,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    offs_n, offs_m = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_M)
    part = tl.program_id(1)
    mask_n, mask_m, wide_n = offs_n < N, offs_m < M, offs_n.to(tl.int64)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k in range(part * k_a_part, min(K, (part + 1) * k_a_part), BLOCK_K):
        offs_k = k + tl.arange(0, BLOCK_K)
        mask_k = offs_k < K
        mask = mask_n[:, None] & mask_k[None, :]
        m = tl.load(m_ptr + wide_n[:, None] * stride_m + offs_k[None, :], mask=mask, other=0)
        e = tl.load(e_ptr + wide_n[:, None] * groups + (offs_k // GROUP)[None, :], mask=mask, other=0).to(tl.int32)
        x_ptrs = x_ptr + offs_m.to(tl.int64)[None, :] * stride_x + offs_k[:, None]
        x = tl.load(x_ptrs, mask=mask_m[None, :] & mask_k[:, None], other=0.0)
        w = (m.to(tl.float32) * _scale(e)).to(x.dtype)
        acc = tl.dot(w, x, acc, input_precision="ieee")
    at = part.to(tl.int64) * stride_part + offs_m.to(tl.int64)[None, :] * stride_out + offs_n[:, None]
    tl.store(out_ptr + at, acc, mask=mask_n[:, None] & mask_m[None, :])


@triton.jit
def _sum_kernel(out_ptr, parts_ptr, N, stride_out, stride_part, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        at = tl.cast(part, tl.int64) * stride_part + row * N + offs_n
        acc += tl.load(parts_ptr + at, mask=offs_n < N, other=0.0)
    tl.store(out_ptr + row * stride_out + offs_n, acc.to(out_ptr.dtype.element_ty), mask=offs_n < N)


def gemv(x, mantissas, exponents, group, out):
    (M, K), N = x.shape, mantissas.shape[0]
    block_n, block_k, split = (64, 128, 2) if x.is_cuda else (16, 64, 2)
    a_part = triton.cdiv(triton.cdiv(K, block_k), split) * block_k
    split = triton.cdiv(K, a_part)
    parts = torch.empty(split, M, N, dtype=torch.float32, device=x.device)
    _gemm_kernel[(triton.cdiv(N, block_n), split)](
        parts, x, mantissas, exponents, M, N, K, exponents.shape[1], a_part,
        parts.stride(0), N, x.stride(0), mantissas.stride(0),
        GROUP=group, BLOCK_M=16, BLOCK_N=block_n, BLOCK_K=block_k,
    )
    block = 1024 if x.is_cuda else 32
    _sum_kernel[(M, triton.cdiv(N, block))](out, parts, N, out.stride(0), parts.stride(0), PARTS=split, BLOCK=block)
