"""Copies of matrices whose rows do not start at multiples of 16 bytes, so that fast loads reach them.

Rows of 4100 bf16 numbers are 8200 bytes. The copy engine cannot address them, and threads load them in pieces of 8
bytes, or of 2 where rows have an odd length: a product is five times slower. A copy with longer rows costs one pass,
4 bytes a number in bf16. For 4095 x 4100 that is 67 MB or 16 us at 4.2 TB/s, beside the 205 us of a product of 4096^3.
"""

import torch
import triton
import triton.language as tl

from course_lib.kernels.launching import launch
from course_lib.kernels.strides import common_unit

__all__ = ["aligned_like", "aligned_rows", "copy_back", "copy_kernel", "copy_rows"]


@triton.jit
def copy_kernel(
    out_ptr, x_ptr,
    M, out_units, x_units,
    pitch_out, pitch_x, stride_out, stride_x,
    UNIT_OUT: tl.constexpr, UNIT_X: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # Widths and pitches in units show the compiler wide accesses on the side that has them.
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_m = (offs_m < M)[:, None]
    x_ptrs = x_ptr + offs_m[:, None] * pitch_x * UNIT_X + offs_n[None, :] * stride_x
    x = tl.load(x_ptrs, mask=mask_m & (offs_n < x_units * UNIT_X)[None, :], other=0.0)
    out_ptrs = out_ptr + offs_m[:, None] * pitch_out * UNIT_OUT + offs_n[None, :] * stride_out
    tl.store(out_ptrs, x, mask=mask_m & (offs_n < out_units * UNIT_OUT)[None, :])


def copy_rows(out: torch.Tensor, x: torch.Tensor) -> None:
    """x into out, of as many rows; of columns as many as both have. More columns of out become 0."""
    most = 16 // x.element_size()
    units = [common_unit([one.shape[1], one.stride(0)], most) if one.stride(1) == 1 else 1 for one in (out, x)]
    block_m, block_n = (8, 512) if x.device.type == "cuda" else (16, 64)
    launch(
        copy_kernel, (triton.cdiv(x.shape[0], block_m), triton.cdiv(out.shape[1], block_n)),
        out, x,
        x.shape[0], out.shape[1] // units[0], x.shape[1] // units[1],
        out.stride(0) // units[0], x.stride(0) // units[1], out.stride(1), x.stride(1),
        UNIT_OUT=units[0], UNIT_X=units[1], BLOCK_M=block_m, BLOCK_N=block_n, num_warps=4,
    )  # fmt: skip


def aligned_like(x: torch.Tensor) -> torch.Tensor:
    """An empty matrix of x's shape whose rows start at multiples of 16 bytes."""
    unit = 16 // x.element_size()
    pitch = triton.cdiv(x.shape[1], unit) * unit
    return torch.empty(x.shape[0], pitch, dtype=x.dtype, device=x.device)[:, : x.shape[1]]


def aligned_rows(x: torch.Tensor) -> torch.Tensor:
    """x (M, N) once more, any strides, with rows that start at multiples of 16 bytes."""
    copied = aligned_like(x)
    copy_rows(_to_the_pitch(copied), x)
    return copied


def copy_back(out: torch.Tensor, copied: torch.Tensor) -> None:
    """What `aligned_like(out)` holds into out."""
    copy_rows(out, _to_the_pitch(copied))


def _to_the_pitch(x: torch.Tensor) -> torch.Tensor:
    """x with what lies between the end of a row and the start of the next: all accesses are 16 bytes wide."""
    return x.as_strided((x.shape[0], x.stride(0)), x.stride())
