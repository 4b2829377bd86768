"""The number of turns rounds down."""

import triton
import triton.language as tl

KILLED_BY = "a long K"


@triton.jit
def _matmul_kernel(
    out_ptr, a_ptr, b_ptr,
    M, N, K,
    stride_om, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    tiles_n = tl.cdiv(N, BLOCK_N)
    offs_m = (tl.program_id(0) // tiles_n).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = (tl.program_id(0) % tiles_n).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows and columns past the end repeat the first ones: their products are never stored.
    rows = offs_m % M
    columns = offs_n % N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for turn in range(K // BLOCK_K):
        offs_k = turn * BLOCK_K + tl.arange(0, BLOCK_K)
        a = tl.load(
            a_ptr + rows[:, None] * stride_am + offs_k[None, :].to(tl.int64) * stride_ak,
            mask=(offs_k < K)[None, :], other=0.0,
        )
        b = tl.load(
            b_ptr + offs_k[:, None].to(tl.int64) * stride_bk + columns[None, :] * stride_bn,
            mask=(offs_k < K)[:, None], other=0.0,
        )
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(
        out_ptr + offs_m[:, None] * stride_om + offs_n[None, :],
        acc.to(out_ptr.dtype.element_ty),
        mask=(offs_m < M)[:, None] & (offs_n < N)[None, :],
    )


def matmul(a, b, out):
    (M, K), N = a.shape, b.shape[1]
    grid = (triton.cdiv(M, 32) * triton.cdiv(N, 128),)
    _matmul_kernel[grid](
        out, a, b,
        M, N, K,
        out.stride(0), a.stride(0), a.stride(1), b.stride(0), b.stride(1),
        BLOCK_M=32, BLOCK_N=128, BLOCK_K=64,
    )
