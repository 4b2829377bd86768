"""y = x wᵀ for one row of x, or a few: every weight is read once and used as it comes, without tensor cores.

    y[r, n] = sum over groups g of 2^(e[n, g] - 133) * (sum of m[n, k] x[r, k] over the k of g)

N K (1 + 1 / group) bytes, 2 N K FLOP a row of x: the weights' bytes set the time. What stands in the way is latency and
instructions, not bandwidth: an H200 issues about 7 instructions in the time in which a weight arrives. So a program
takes whole rows of weights and asks for all of them at once, 128 bytes a thread; the integers become fp32 in one
instruction each; and the scale multiplies a group's sum and not its 32 elements.
"""

import triton
import triton.language as tl

from course_lib.kernels.mx.convert import scale_of
from course_lib.kernels.mx.format import Quantized
from course_lib.kernels.mx.tuning import Vector

__all__ = ["gemv_kernel", "write_gemv"]


@triton.jit
def gemv_kernel(
    out_ptr, m_ptr, e_ptr, x_ptr, bias_ptr,
    N, K, n_groups,
    stride_out, stride_m, stride_x,
    ROWS: tl.constexpr, ROWS_PADDED: tl.constexpr, GROUP_SIZE: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_r = tl.arange(0, ROWS_PADDED)
    offs_i = tl.arange(0, GROUP_SIZE)
    mask_n = offs_n < N
    wide_n = offs_n.to(tl.int64)

    acc = tl.zeros((ROWS_PADDED, BLOCK_N), tl.float32)
    for first in range(0, n_groups, BLOCK_G):
        offs_g = first + tl.arange(0, BLOCK_G)
        mask_g = offs_g < n_groups
        offs_k = offs_g[:, None] * GROUP_SIZE + offs_i[None, :]  # (BLOCK_G, GROUP_SIZE)
        mask_k = mask_g[:, None] if EVEN else offs_k < K
        at = wide_n[:, None, None] * stride_m + offs_k[None, :, :]  # (BLOCK_N, BLOCK_G, GROUP_SIZE)
        m = tl.load(m_ptr + at, mask=mask_n[:, None, None] & mask_k[None, :, :], other=0)
        at = wide_n[:, None] * n_groups + offs_g[None, :]  # (BLOCK_N, BLOCK_G)
        e = tl.load(e_ptr + at, mask=mask_n[:, None] & mask_g[None, :], other=0)
        w, scale = m.to(tl.float32), scale_of(e)
        for r in tl.static_range(ROWS):
            x = tl.load(x_ptr + tl.cast(r, tl.int64) * stride_x + offs_k, mask=mask_k, other=0.0).to(tl.float32)
            y = tl.sum(tl.sum(w * x[None, :, :], axis=2) * scale, axis=1)  # (BLOCK_N,)
            acc += tl.where((offs_r == r)[:, None], y[None, :], 0.0)

    if bias_ptr is not None:
        acc += tl.load(bias_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)[None, :]
    out_ptrs = out_ptr + offs_r.to(tl.int64)[:, None] * stride_out + offs_n[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=(offs_r < ROWS)[:, None] & mask_n[None, :])


def write_gemv(out, x, w: Quantized, bias, blocks: Vector) -> None:
    """out (rows, N), x (rows, K), columns adjacent, few rows: they are unrolled."""
    rows, (N, K), n_groups = x.shape[0], w.mantissas.shape, w.exponents.shape[1]
    k = max(w.group, min(blocks.k, triton.next_power_of_2(K)))
    n = max(1, min(blocks.n, blocks.n * blocks.k // k))  # a group longer than a block takes the place of rows
    gemv_kernel[(triton.cdiv(N, n),)](
        out, w.mantissas, w.exponents, x, bias,
        N, K, n_groups,
        out.stride(0), w.mantissas.stride(0), x.stride(0),
        ROWS=rows, ROWS_PADDED=triton.next_power_of_2(rows), GROUP_SIZE=w.group, EVEN=K % w.group == 0,
        BLOCK_N=n, BLOCK_G=k // w.group,
        num_warps=blocks.warps,
    )  # fmt: skip
