"""Softmax of the rows of a matrix, forward, in one read and one write of device memory.

    y[i, j] = exp(x[i, j] - m[i]) / sum_j exp(x[i, j] - m[i])        m[i] = max_j x[i, j]

Bytes: rows x width x (input size + output size); about 5 FLOP an element. At 2 bytes an element that is 1.25 FLOP
a byte, far left of any ridge: memory bandwidth sets the time. A row lies whole in the registers of one program, so
the maximum, the sum and the division cost no further pass over memory; that is what limits the width to 16384.

A row that holds only -inf gives zeros, where torch gives NaN: attention wants that for a query with no key.
"""

import functools

import torch
import triton
import triton.language as tl

__all__ = ["MAX_WIDTH", "softmax", "softmax_reference"]

MAX_WIDTH = 16384


def softmax_reference(x: torch.Tensor) -> torch.Tensor:
    empty = (x == -float("inf")).all(dim=-1, keepdim=True)
    return torch.softmax(x.float(), dim=-1).masked_fill(empty, 0.0).to(x.dtype)


@triton.jit
def _softmax_kernel(
    out_ptr, x_ptr,
    n_rows, n_units,
    stride_out_units, stride_x_units,
    UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    LOG2_E: tl.constexpr = 1.4426950408889634
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    # Width and row strides come as a number of UNITs, so that the compiler sees they are multiples of UNIT and
    # makes one 16-byte access of every 8 two-byte elements. As plain integers it could not know, and would make 8.
    mask = (offs_m < n_rows)[:, None] & (offs_n < n_units * UNIT)[None, :]

    x_ptrs = x_ptr + offs_m[:, None] * (stride_x_units * UNIT) + offs_n[None, :]
    x = tl.load(x_ptrs, mask=mask, other=-float("inf")).to(tl.float32)

    row_max = tl.max(x, axis=1)
    # -inf - -inf is NaN; any finite shift turns a row of only -inf into exp(-inf) = 0.
    shift = tl.where(row_max == -float("inf"), 0.0, row_max)
    # Subtract, then scale: one fused multiply-add with log2(e) m would overflow for |x| above 2.3e38.
    numerator = tl.exp2((x - shift[:, None]) * LOG2_E)
    row_sum = tl.sum(numerator, axis=1)
    scale = 1.0 / tl.where(row_sum == 0.0, 1.0, row_sum)

    out_ptrs = out_ptr + offs_m[:, None] * (stride_out_units * UNIT) + offs_n[None, :]
    tl.store(out_ptrs, (numerator * scale[:, None]).to(out_ptr.dtype.element_ty), mask=mask)


# BLOCK_N (the width rounded up to a power of two): (rows a program, warps). Each entry is the fastest of 4 to 10 tried
# on an H200, 16384 rows of bf16, in us a call; the copy is what reading and writing the same bytes takes.
_CONFIGS = {
    32: (32, 4),  # as 64
    64: (16, 4),  # 2.83; 32 rows 3.03, 64 rows 3.79; copy 2.87
    128: (8, 1),  # 4.09; (16, 4) 4.17, (32, 4) 4.92; copy 3.83
    256: (4, 1),  # 5.78; (8, 1) 6.11, (16, 4) 6.53; copy 5.89
    512: (2, 1),  # 10.13; (8, 4) 10.28, (1, 1) 11.77; copy 9.84
    1024: (1, 2),  # 18.20; (1, 1) 18.26, (4, 4) 18.36, (8, 4) 21.64; copy 17.76
    2048: (1, 4),  # 33.74; (1, 2) 33.79, (2, 4) 34.69; copy 33.25
    4096: (1, 8),  # 66.76; (1, 4) 66.99, (2, 8) 67.19, (1, 16) 81.83; copy 65.02
    8192: (1, 16),  # 129.5; (1, 4) 131.2, (2, 16) 135.5, (1, 32) 193.5; copy 127.7
    16384: (1, 16),  # 263.4; (1, 8) 265.5, (1, 32) 267.6; copy 252.3
}


@functools.cache
def _config(width: int) -> tuple[int, int, int]:
    """Rows a program, columns of its block, warps."""
    block_n = max(32, triton.next_power_of_2(width))
    return _CONFIGS[block_n][0], block_n, _CONFIGS[block_n][1]


def _unit(*sizes: int) -> int:
    """The largest power of two, up to 8, that divides every size: 8 two-byte elements make a 16-byte access."""
    bits = functools.reduce(int.__or__, sizes, 8)
    return bits & -bits


def softmax(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Softmax over the last dimension of a matrix, computed in fp32. No gradient is recorded.

    x, out: (rows, width), width at most 16384, any floating dtype, columns adjacent, any row stride of at least the
    width. Returns `out`, a new tensor like x when none is given. Bytes: read x, write out.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    assert x.dim() == 2 and out.shape == x.shape, f"two matrices of one shape expected, got {x.shape}, {out.shape}"
    rows, width = x.shape
    if rows == 0 or width == 0:
        return out
    assert width <= MAX_WIDTH, f"a row lies in one program's registers: width at most {MAX_WIDTH}, got {width}"
    assert width == 1 or (x.stride(1) == 1 and out.stride(1) == 1), "the columns of a row must be adjacent"
    block_m, block_n, num_warps = _config(width)
    unit = _unit(width, x.stride(0), out.stride(0))
    _softmax_kernel[(triton.cdiv(rows, block_m),)](
        out, x,
        rows, width // unit,
        out.stride(0) // unit, x.stride(0) // unit,
        UNIT=unit, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=num_warps,
    )  # fmt: skip
    return out
