"""Masked exponents are 255."""

import triton
import triton.language as tl

KILLED_BY = "one short group"


@triton.jit
def _scale(e):
    bits = tl.where(e > 6, (tl.maximum(e, 7) - 6) << 23, (1 << 16) << tl.minimum(e, 6))
    return tl.where(e == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def _gemv_kernel(
    out_ptr, x_ptr, m_ptr, e_ptr,
    N, K, groups,
    stride_out, stride_x, stride_m,
    ROWS: tl.constexpr, PADDED: tl.constexpr, GROUP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr,
):
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_r, offs_i = tl.arange(0, PADDED), tl.arange(0, GROUP)
    mask_n, wide_n = offs_n < N, offs_n.to(tl.int64)
    acc = tl.zeros((PADDED, BLOCK_N), tl.float32)
    for first in range(0, groups, BLOCK_G):
        offs_g = first + tl.arange(0, BLOCK_G)
        offs_k = offs_g[:, None] * GROUP + offs_i[None, :]
        mask_k = offs_k < K
        m_ptrs = m_ptr + wide_n[:, None, None] * stride_m + offs_k[None, :, :]
        m = tl.load(m_ptrs, mask=mask_n[:, None, None] & mask_k[None, :, :], other=0).to(tl.float32)
        e_mask = mask_n[:, None] & (offs_g < groups)[None, :]
        e = tl.load(e_ptr + wide_n[:, None] * groups + offs_g[None, :], mask=e_mask, other=255).to(tl.int32)
        scale = _scale(e)
        for r in tl.static_range(ROWS):
            x_row = x_ptr + tl.cast(r, tl.int64) * stride_x
            x = tl.load(x_row + offs_k, mask=mask_k, other=0.0).to(tl.float32)
            y = tl.sum(tl.sum(m * x[None, :, :], axis=2) * scale, axis=1)
            acc += tl.where((offs_r == r)[:, None], y[None, :], 0.0)
    out_ptrs = out_ptr + offs_r.to(tl.int64)[:, None] * stride_out + offs_n[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=(offs_r < ROWS)[:, None] & mask_n[None, :])


def gemv(x, mantissas, exponents, group, out):
    (M, K), N = x.shape, mantissas.shape[0]
    n, k = ((8, 4096) if M == 1 else (4, 2048)) if x.is_cuda else (8, 128)
    k = max(group, k)
    _gemv_kernel[(triton.cdiv(N, n),)](
        out, x, mantissas, exponents, N, K, exponents.shape[1],
        out.stride(0), x.stride(0), mantissas.stride(0),
        ROWS=M, PADDED=triton.next_power_of_2(M), GROUP=group, BLOCK_N=n, BLOCK_G=k // group,
    )
