"""Parts of K are added into out, which nobody has set to zero: on a GPU the sum is another NaN."""

import triton
import triton.language as tl

KILLED_BY = "one row"
TIERS = ("gpu",)


@triton.jit
def _scale(e):
    bits = tl.where(e > 6, (tl.maximum(e, 7) - 6) << 23, (1 << 16) << tl.minimum(e, 6))
    return tl.where(e == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def _gemv_kernel(
    out_ptr, x_ptr, m_ptr, e_ptr,
    N, K, groups,
    stride_out, stride_x, stride_m,
    GROUP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1).to(tl.int64)
    mask_n, wide_n = offs_n < N, offs_n.to(tl.int64)
    acc = tl.zeros((BLOCK_N,), tl.float32)
    for k in range(tl.program_id(2) * BLOCK_K, K, 2 * BLOCK_K):
        offs_k = k + tl.arange(0, BLOCK_K)
        mask_k = offs_k < K
        mask = mask_n[:, None] & mask_k[None, :]
        x = tl.load(x_ptr + row * stride_x + offs_k, mask=mask_k, other=0.0).to(tl.float32)
        m = tl.load(m_ptr + wide_n[:, None] * stride_m + offs_k[None, :], mask=mask, other=0)
        e = tl.load(e_ptr + wide_n[:, None] * groups + (offs_k // GROUP)[None, :], mask=mask, other=0).to(tl.int32)
        w = m.to(tl.float32) * _scale(e)
        acc += tl.sum(w * x[None, :], axis=1)
    tl.atomic_add(out_ptr + row * stride_out + offs_n, acc.to(out_ptr.dtype.element_ty), mask=mask_n)


def gemv(x, mantissas, exponents, group, out):
    (M, K), N = x.shape, mantissas.shape[0]
    block_n, block_k = (16, 256) if x.is_cuda else (16, 128)
    _gemv_kernel[(triton.cdiv(N, block_n), M, 2)](
        out, x, mantissas, exponents, N, K, exponents.shape[1],
        out.stride(0), x.stride(0), mantissas.stride(0), GROUP=group, BLOCK_N=block_n, BLOCK_K=block_k,
    )
