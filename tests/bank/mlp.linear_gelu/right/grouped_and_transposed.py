"""Grouped order, w loaded as (N, K) and transposed, tanh from an exponential that goes to 0."""

import triton
import triton.language as tl


@triton.jit
def _tanh(u):
    e = tl.exp(-2.0 * tl.abs(u))
    size = (1.0 - e) / (1.0 + e)
    return tl.where(u < 0, -size, size)


@triton.jit
def _grouped_kernel(
    out_ptr, x_ptr, w_ptr, bias_ptr,
    M, N, K,
    stride_om, stride_xm, stride_xk, stride_wn, stride_wk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    pid = tl.program_id(0)
    first = pid // (GROUP * tiles_n) * GROUP
    inside = pid % (GROUP * tiles_n)
    height = tl.minimum(tiles_m - first, GROUP)
    offs_m = (first + inside % height).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = (inside // height).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
    for k in range(0, K, BLOCK_K):
        offs_k = k + tl.arange(0, BLOCK_K).to(tl.int64)
        x = tl.load(
            x_ptr + offs_m[:, None] * stride_xm + offs_k[None, :] * stride_xk,
            mask=(offs_m < M)[:, None] & (offs_k < K)[None, :], other=0.0,
        )
        w = tl.load(
            w_ptr + offs_n[:, None] * stride_wn + offs_k[None, :] * stride_wk,
            mask=(offs_n < N)[:, None] & (offs_k < K)[None, :], other=0.0,
        )
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    y = 0.5 * acc * (1.0 + _tanh(0.7978845608028654 * acc * (1.0 + 0.044715 * acc * acc)))
    mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    tl.store(out_ptr + offs_m[:, None] * stride_om + offs_n[None, :], y.to(out_ptr.dtype.element_ty), mask=mask)


def linear_gelu(x, w, bias, out):
    (M, K), N = x.shape, w.shape[0]
    grid = (triton.cdiv(M, 32) * triton.cdiv(N, 64),)
    _grouped_kernel[grid](
        out, x, w, bias,
        M, N, K,
        out.stride(0), x.stride(0), x.stride(1), w.stride(0), w.stride(1),
        BLOCK_M=32, BLOCK_N=64, BLOCK_K=32, GROUP=4,
    )
