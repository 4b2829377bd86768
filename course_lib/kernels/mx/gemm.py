"""y = x wᵀ for some rows of x on the tensor cores: weights become bf16 on their way from memory to the product.

The weights are the left operand: 64 of their rows fill the instruction's 64, however few rows x has, and rows of x are
its 16 and more columns. Few rows of weights make few programs (N = 4096: 64), so the sum along K is cut into SPLIT
pieces; each writes its part in fp32, and a second kernel adds the parts in a fixed order: the same bits on every run.

Bytes: N K (1 + 1 / group), and 8 rows x N x SPLIT for the parts, which stay in the L2 cache. A block of weights is read
again for every BLOCK_M rows of x.
"""

import torch
import triton
import triton.language as tl

from course_lib.kernels.mx.convert import scale_of
from course_lib.kernels.mx.format import Quantized
from course_lib.kernels.mx.tuning import Matrix

__all__ = ["add_parts", "gemm_kernel", "sum_parts_kernel", "write_gemm"]


@triton.jit
def gemm_kernel(
    out_ptr, m_ptr, e_ptr, x_ptr, bias_ptr,
    M, N, K, n_groups, k_a_part,
    stride_out_part, stride_out, stride_m, stride_x,
    GROUP_SIZE: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    GROUPS: tl.constexpr = BLOCK_K // GROUP_SIZE if BLOCK_K > GROUP_SIZE else 1  # in a block
    INNER: tl.constexpr = BLOCK_K // GROUPS
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    part = tl.program_id(2)
    mask_n, mask_m = offs_n < N, offs_m < M
    m_rows = m_ptr + offs_n.to(tl.int64)[:, None] * stride_m
    e_rows = e_ptr + offs_n.to(tl.int64)[:, None] * n_groups
    x_rows = x_ptr + offs_m.to(tl.int64)[None, :] * stride_x

    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k in range(part * k_a_part, min(K, (part + 1) * k_a_part), BLOCK_K):
        offs_k = k + tl.arange(0, BLOCK_K)
        offs_g = k // GROUP_SIZE + tl.arange(0, GROUPS)
        # EVEN: K is a multiple of BLOCK_K, and nothing along K needs a mask.
        mask_w = mask_n[:, None] if EVEN else mask_n[:, None] & (offs_k < K)[None, :]
        mask_e = mask_n[:, None] if EVEN else mask_n[:, None] & (offs_g < n_groups)[None, :]
        mask_x = mask_m[None, :] if EVEN else mask_m[None, :] & (offs_k < K)[:, None]
        m = tl.load(m_rows + offs_k[None, :], mask=mask_w, other=0)  # (BLOCK_N, BLOCK_K)
        e = tl.load(e_rows + offs_g[None, :], mask=mask_e, other=0)  # (BLOCK_N, GROUPS)
        x = tl.load(x_rows + offs_k[:, None], mask=mask_x, other=0.0)  # (BLOCK_K, BLOCK_M)
        w = tl.reshape(m, (BLOCK_N, GROUPS, INNER)).to(tl.float32) * scale_of(e)[:, :, None]
        w = tl.reshape(w, (BLOCK_N, BLOCK_K)).to(x.dtype)  # exact in bf16
        acc = tl.dot(w, x, acc, input_precision=PRECISION)  # (BLOCK_N, BLOCK_M)

    if bias_ptr is not None:
        acc += tl.load(bias_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)[:, None]
    out_ptrs = out_ptr + tl.cast(part, tl.int64) * stride_out_part
    out_ptrs = out_ptrs + offs_m.to(tl.int64)[None, :] * stride_out + offs_n[:, None]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask_n[:, None] & mask_m[None, :])


@triton.jit
def sum_parts_kernel(
    out_ptr, parts_ptr, bias_ptr,
    N, stride_out, stride_part,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    offs_n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs_n < N
    acc = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        acc += tl.load(parts_ptr + tl.cast(part, tl.int64) * stride_part + row * N + offs_n, mask=mask, other=0.0)
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + offs_n, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * stride_out + offs_n, acc.to(out_ptr.dtype.element_ty), mask=mask)


def add_parts(out, parts, bias) -> None:
    """The sum of parts (split, rows, N), fp32, and the bias, into out (rows, N)."""
    rows, N = out.shape
    sum_parts_kernel[(rows, triton.cdiv(N, 1024))](
        out, parts, bias,
        N, out.stride(0), parts.stride(0),
        PARTS=len(parts), BLOCK=1024, num_warps=4,
    )  # fmt: skip


def write_gemm(out, x, w: Quantized, bias, blocks: Matrix) -> None:
    """out (rows, N), x (rows, K) in bf16 or fp32, columns adjacent. FLOP: 2 rows N K."""
    M, (N, K), n_groups = x.shape[0], w.mantissas.shape, w.exponents.shape[1]
    a_part = triton.cdiv(triton.cdiv(K, blocks.k), blocks.split) * blocks.k
    split = triton.cdiv(K, a_part)
    parts = out if split == 1 else torch.empty(split, M, N, dtype=torch.float32, device=out.device)
    gemm_kernel[(triton.cdiv(N, blocks.n), triton.cdiv(M, blocks.m), split)](
        parts, w.mantissas, w.exponents, x, bias if split == 1 else None,
        M, N, K, n_groups, a_part,
        parts.stride(0) if split > 1 else 0, parts.stride(-2), w.mantissas.stride(0), x.stride(0),
        GROUP_SIZE=w.group, EVEN=K % blocks.k == 0,
        BLOCK_M=blocks.m, BLOCK_N=blocks.n, BLOCK_K=blocks.k,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",  # to bf16 it makes no difference
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    if split > 1:
        add_parts(out, parts, bias)
