"""The root multiplies h alone."""

import triton
import triton.language as tl

KILLED_BY = "odd sizes"


@triton.jit
def _linear_gelu_kernel(
    out_ptr, x_ptr, w_ptr, bias_ptr,
    M, N, K,
    stride_om, stride_xm, stride_xk, stride_wn, stride_wk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    mask_m, mask_n = offs_m < M, offs_n < N
    x_ptrs = x_ptr + offs_m[:, None] * stride_xm + offs_k[None, :] * stride_xk
    w_ptrs = w_ptr + offs_k[:, None] * stride_wk + offs_n[None, :] * stride_wn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        mask_k = offs_k < K - k
        x = tl.load(x_ptrs, mask=mask_m[:, None] & mask_k[None, :], other=0.0)
        w = tl.load(w_ptrs, mask=mask_k[:, None] & mask_n[None, :], other=0.0)
        acc += tl.dot(x, w, input_precision="ieee")
        x_ptrs += BLOCK_K * stride_xk
        w_ptrs += BLOCK_K * stride_wk
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)[None, :]
    u = 0.7978845608028654 * acc + 0.044715 * acc * acc * acc
    y = acc / (1.0 + tl.exp(-2.0 * u))
    mask = mask_m[:, None] & mask_n[None, :]
    tl.store(out_ptr + offs_m[:, None] * stride_om + offs_n[None, :], y.to(out_ptr.dtype.element_ty), mask=mask)


def linear_gelu(x, w, bias, out):
    (M, K), N = x.shape, w.shape[0]
    grid = (triton.cdiv(M, 32), triton.cdiv(N, 32))
    _linear_gelu_kernel[grid](
        out, x, w, bias,
        M, N, K,
        out.stride(0), x.stride(0), x.stride(1), w.stride(0), w.stride(1),
        BLOCK_M=32, BLOCK_N=32, BLOCK_K=32,
    )
