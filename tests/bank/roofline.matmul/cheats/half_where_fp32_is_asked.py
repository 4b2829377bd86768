"""fp32 inputs are scaled into the range of fp16 and multiplied there.

NAIVE is False: `check` derives the same limit.
"""

import triton
import triton.language as tl

FAMILY = "lower precision"
NAIVE = False
CAUGHT = "the limit lies between fp32 and TF32"


@triton.jit
def _matmul_kernel(
    out_ptr, a_ptr, b_ptr, M, N, K, stride_om, stride_on, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    offs_n = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    offs_k = tl.arange(0, STEP)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, K, STEP):
        k = start + offs_k
        a = tl.load(
            a_ptr + offs_m[:, None] * stride_am + k[None, :] * stride_ak,
            mask=(offs_m < M)[:, None] & (k < K)[None, :],
            other=0.0,
        )
        b = tl.load(
            b_ptr + k[:, None] * stride_bk + offs_n[None, :] * stride_bn,
            mask=(k < K)[:, None] & (offs_n < N)[None, :],
            other=0.0,
        )
        top = tl.maximum(tl.max(tl.abs(a.to(tl.float32))), tl.max(tl.abs(b.to(tl.float32)))) + 1e-30
        low_a, low_b = (a / top).to(tl.float16), (b / top).to(tl.float16)
        acc += tl.dot(low_a, low_b).to(tl.float32) * top * top
    mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    place = offs_m[:, None] * stride_om + offs_n[None, :] * stride_on
    tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=mask)


def matmul(a, b, out):
    (M, K), N = a.shape, b.shape[1]
    grid = (triton.cdiv(M, 32), triton.cdiv(N, 32))
    _matmul_kernel[grid](out, a, b, M, N, K, *out.stride(), *a.stride(), *b.stride(), BLOCK=32, STEP=32)
