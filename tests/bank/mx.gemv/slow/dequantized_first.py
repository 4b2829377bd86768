"""Weights are made whole in memory, then multiplied."""

import torch
import triton
import triton.language as tl


@triton.jit
def _scale(e):
    bits = tl.where(e > 6, (tl.maximum(e, 7) - 6) << 23, (1 << 16) << tl.minimum(e, 6))
    return tl.where(e == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def _dequantize_kernel(w_ptr, m_ptr, e_ptr, K, groups, stride_m, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = tl.load(m_ptr + row * stride_m + offs, mask=offs < K, other=0)
    e = tl.load(e_ptr + row * groups + offs // GROUP, mask=offs < K, other=0).to(tl.int32)
    w = m.to(tl.float32) * _scale(e)
    tl.store(w_ptr + row * K + offs, w.to(w_ptr.dtype.element_ty), mask=offs < K)


@triton.jit
def _product_kernel(
    out_ptr, x_ptr, w_ptr, N, K, stride_out, stride_x, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1).to(tl.int64)
    mask_n = offs_n < N
    acc = tl.zeros((BLOCK_N,), tl.float32)
    for k in range(0, K, BLOCK_K):
        offs_k = k + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + row * stride_x + offs_k, mask=offs_k < K, other=0.0).to(tl.float32)
        mask = mask_n[:, None] & (offs_k < K)[None, :]
        w = tl.load(w_ptr + offs_n.to(tl.int64)[:, None] * K + offs_k[None, :], mask=mask, other=0.0)
        acc += tl.sum(w.to(tl.float32) * x[None, :], axis=1)
    tl.store(out_ptr + row * stride_out + offs_n, acc.to(out_ptr.dtype.element_ty), mask=mask_n)


def gemv(x, mantissas, exponents, group, out):
    (M, K), N = x.shape, mantissas.shape[0]
    w = torch.empty(N, K, dtype=x.dtype, device=x.device)
    block = 1024 if x.is_cuda else 256
    _dequantize_kernel[(N, triton.cdiv(K, block))](
        w, mantissas, exponents, K, exponents.shape[1], mantissas.stride(0), GROUP=group, BLOCK=block
    )
    _product_kernel[(triton.cdiv(N, 16), M)](
        out, x, w, N, K, out.stride(0), x.stride(0), BLOCK_N=16, BLOCK_K=256 if x.is_cuda else 128
    )
