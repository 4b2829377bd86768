"""The way without a fused end: the vendor's product first, then one pass over its result.

    gelu      reads h, writes a (and h is kept by whoever needs it)
    slope     reads da and h, writes dh and, where asked, a: 8 bytes an element of two, in one pass instead of eager's
              three (GELU's backward, the sum for the bias, the second GELU)

da is rounded to the tensors' type on its way through memory, as eager rounds it.
"""

import torch
import triton
import triton.language as tl

from course_lib.kernels.launching import launch, planned
from course_lib.kernels.linear_gelu.gelu import gelu_and_slope

__all__ = ["ROWS", "slope_kernel", "write_slope"]

ROWS = 128  # whose columns are summed before they are written: parts are 1/64 of the bytes of a bf16 matrix


@triton.jit
def slope_kernel(
    dh_ptr, a_ptr, sums_ptr, da_ptr, h_ptr,
    M, N,
    stride_dh_m, stride_a_m, stride_da_m, stride_h_m,
    ROWS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_n = offs_n < N
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)  # added up across threads once, at the end
    for first in range(0, ROWS, BLOCK_M):
        offs_m = tl.program_id(0).to(tl.int64) * ROWS + first + tl.arange(0, BLOCK_M)
        mask = (offs_m < M)[:, None] & mask_n[None, :]
        da = tl.load(da_ptr + offs_m[:, None] * stride_da_m + offs_n[None, :], mask=mask, other=0.0).to(tl.float32)
        h = tl.load(h_ptr + offs_m[:, None] * stride_h_m + offs_n[None, :], mask=mask, other=0.0).to(tl.float32)
        a, slope = gelu_and_slope(h)
        dh = da * slope
        sums += dh
        dh_ptrs = dh_ptr + offs_m[:, None] * stride_dh_m + offs_n[None, :]
        tl.store(dh_ptrs, dh.to(dh_ptr.dtype.element_ty), mask=mask)
        if a_ptr is not None:
            a_ptrs = a_ptr + offs_m[:, None] * stride_a_m + offs_n[None, :]
            tl.store(a_ptrs, a.to(a_ptr.dtype.element_ty), mask=mask)
    tl.store(sums_ptr + tl.program_id(0).to(tl.int64) * N + offs_n, tl.sum(sums, axis=0), mask=mask_n)


def write_slope(dh, a, da, h) -> torch.Tensor:
    """da gelu'(h) into dh, which may be da or h; gelu(h) into a if given. All (M, N), columns adjacent.

    Returns the sums of dh's columns within each 128 rows, fp32. Bytes: read da and h, write dh (and a).
    """
    M, N = h.shape
    sums = torch.empty(triton.cdiv(M, ROWS), N, dtype=torch.float32, device=h.device)
    _write_slope(dh, a, sums, da, h)
    return sums


@planned
def _write_slope(dh, a, sums, da, h) -> None:
    M, N = h.shape
    block_m, block_n = (4, 512) if h.device.type == "cuda" else (16, 64)
    launch(
        slope_kernel, (sums.shape[0], triton.cdiv(N, block_n)),
        dh, a, sums, da, h,
        M, N,
        dh.stride(0), 0 if a is None else a.stride(0), da.stride(0), h.stride(0),
        ROWS=ROWS, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=4,
    )  # fmt: skip
