"""A kernel makes the weights whole, and the vendor's product does the rest."""

import torch
import triton
import triton.language as tl

FAMILY = "vendor call"
NAIVE = True
CAUGHT = "torch computes while the function runs"


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


def gemv(x, mantissas, exponents, group, out):
    K, N = x.shape[1], mantissas.shape[0]
    w = torch.empty(N, K, dtype=x.dtype, device=x.device)
    block = 1024 if x.is_cuda else 256
    _dequantize_kernel[(N, triton.cdiv(K, block))](
        w, mantissas, exponents, K, exponents.shape[1], mantissas.stride(0), GROUP=group, BLOCK=block
    )
    out.copy_(x @ w.T)
