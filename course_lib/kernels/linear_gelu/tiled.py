"""The first two rungs: a program makes a tile, adds the bias and takes the GELU while the sum is still in fp32.

GROUP_M = 1 takes tiles row by row; larger, in groups that share what they read through the L2 cache (as in matmul.py).
Any strides, any sizes. FLOP: 2 M N K on the tensor cores, about 10 more an element of the result.

The second kernel is the same product with another end: gradients that come back through a GELU are multiplied by its
slope, before anything is rounded, and summed over the rows of a tile, which is what the bias's gradient needs.
"""

import torch
import triton
import triton.language as tl

from course_lib.kernels.hardware import limits, multiprocessors
from course_lib.kernels.launching import launch, planned
from course_lib.kernels.linear_gelu.gelu import gelu, gelu_and_slope
from course_lib.kernels.linear_gelu.tuning import reached
from course_lib.kernels.product_tiles import (
    GROUP_M,
    POINTER,
    UNALIGNED,
    Tile,
    allowed,
    constants,
    fastest,
    options,
    tile_count,
    tile_position,
)

__all__ = ["gelu_tiled_kernel", "slope_tiled_kernel", "write_gelu_tiled", "write_slope_tiled"]

INTERPRETED = Tile(32, 64, 16, 4, 1, rate=1)
# The slope's end holds three numbers for each of the product: 128 x 256 spills 4 KB a thread.
SLOPE_POINTER = {size: table[-2:] for size, table in POINTER.items()}


@triton.jit
def _offsets(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    tile_m, tile_n = tile_position(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    offs_m = tl.cast(tile_m, tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.cast(tile_n, tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    return tile_m, offs_m, offs_n


@triton.jit
def _product(
    a_ptr, b_ptr, offs_m, offs_n, mask_m, mask_n,
    K, stride_a_m, stride_a_k, stride_b_k, stride_b_n,
    BLOCK_K: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of a b, in fp32."""
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
    a_ptrs = a_ptr + offs_m[:, None] * stride_a_m + offs_k[None, :] * stride_a_k
    b_ptrs = b_ptr + offs_k[:, None] * stride_b_k + offs_n[None, :] * stride_b_n
    acc = tl.zeros((offs_m.shape[0], offs_n.shape[0]), tl.float32)
    for k in range(0, K, BLOCK_K):
        mask_k = offs_k < K - k
        a = tl.load(a_ptrs, mask=mask_m[:, None] & mask_k[None, :], other=0.0)  # (BLOCK_M, BLOCK_K)
        b = tl.load(b_ptrs, mask=mask_k[:, None] & mask_n[None, :], other=0.0)  # (BLOCK_K, BLOCK_N)
        acc = tl.dot(a, b, acc, input_precision=INPUT_PRECISION)  # (BLOCK_M, BLOCK_N)
        a_ptrs += tl.cast(stride_a_k, tl.int64) * BLOCK_K
        b_ptrs += tl.cast(stride_b_k, tl.int64) * BLOCK_K
    return acc


@triton.jit
def gelu_tiled_kernel(
    out_ptr, h_ptr, x_ptr, w_ptr, bias_ptr,
    M, N, K,
    stride_out_m, stride_out_n, stride_h_m, stride_h_n, stride_x_m, stride_x_k, stride_w_n, stride_w_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    _tile_m, offs_m, offs_n = _offsets(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    mask_m, mask_n = offs_m < M, offs_n < N
    mask = mask_m[:, None] & mask_n[None, :]
    h = _product(
        x_ptr, w_ptr, offs_m, offs_n, mask_m, mask_n,
        K, stride_x_m, stride_x_k, stride_w_k, stride_w_n, BLOCK_K, INPUT_PRECISION,
    )  # fmt: skip
    if bias_ptr is not None:
        h += tl.load(bias_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)[None, :]
    if h_ptr is not None:
        h_ptrs = h_ptr + offs_m[:, None] * stride_h_m + offs_n[None, :] * stride_h_n
        tl.store(h_ptrs, h.to(h_ptr.dtype.element_ty), mask=mask)
    out_ptrs = out_ptr + offs_m[:, None] * stride_out_m + offs_n[None, :] * stride_out_n
    tl.store(out_ptrs, gelu(h).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def slope_tiled_kernel(
    dh_ptr, a_ptr, sums_ptr, h_ptr, dy_ptr, w_ptr,
    M, N, K,
    stride_dh_m, stride_dh_n, stride_a_m, stride_a_n, stride_h_m, stride_h_n,
    stride_dy_m, stride_dy_k, stride_w_k, stride_w_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    tile_m, offs_m, offs_n = _offsets(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    mask_m, mask_n = offs_m < M, offs_n < N
    mask = mask_m[:, None] & mask_n[None, :]
    da = _product(
        dy_ptr, w_ptr, offs_m, offs_n, mask_m, mask_n,
        K, stride_dy_m, stride_dy_k, stride_w_k, stride_w_n, BLOCK_K, INPUT_PRECISION,
    )  # fmt: skip
    h_ptrs = h_ptr + offs_m[:, None] * stride_h_m + offs_n[None, :] * stride_h_n
    h = tl.load(h_ptrs, mask=mask, other=0.0).to(tl.float32)
    a, slope = gelu_and_slope(h)
    dh = da * slope
    if sums_ptr is not None:  # a row of sums for each row of tiles: added up afterwards in a fixed order
        sums_ptrs = sums_ptr + tl.cast(tile_m, tl.int64) * N + offs_n
        tl.store(sums_ptrs, tl.sum(dh, axis=0), mask=mask_n)  # rows past the end are 0: so is dy there
    if a_ptr is not None:
        a_ptrs = a_ptr + offs_m[:, None] * stride_a_m + offs_n[None, :] * stride_a_n
        tl.store(a_ptrs, a.to(a_ptr.dtype.element_ty), mask=mask)
    dh_ptrs = dh_ptr + offs_m[:, None] * stride_dh_m + offs_n[None, :] * stride_dh_n
    tl.store(dh_ptrs, dh.to(dh_ptr.dtype.element_ty), mask=mask)


def _tile(table: dict, x: torch.Tensor, M: int, N: int) -> Tile:
    if x.device.type != "cuda":
        return INTERPRETED
    tiles = allowed(table[x.element_size()], x.element_size(), limits(x.device))
    return fastest(tiles, M, N, multiprocessors(x.device))


def _strides(x: torch.Tensor | None) -> tuple[int, int]:
    return (0, 0) if x is None else x.stride()


@planned
def write_gelu_tiled(out, h, x, w, bias, group_m: int = GROUP_M, input_precision: str = "ieee", tile=None) -> None:
    """gelu(x wᵀ + bias) into out, and x wᵀ + bias into h if that is given. x (M, K), w (N, K), out, h (M, N)."""
    (M, K), N = x.shape, w.shape[0]
    tile = tile or _tile(POINTER if reached(out, x, w) else UNALIGNED, x, M, N)
    launch(
        gelu_tiled_kernel, (tile_count(M, N, tile),),
        out, h, x, w, bias,
        M, N, K,
        *out.stride(), *_strides(h), *x.stride(), *w.stride(),
        **constants(tile, group_m, input_precision), **options(tile),
    )  # fmt: skip


def write_slope_tiled(
    dh, a, h, dy, w, sums: bool, group_m: int = GROUP_M, input_precision: str = "ieee", tile=None
) -> torch.Tensor | None:
    """(dy w) gelu'(h) into dh, which may be h itself; gelu(h) into a if that is given.

    dy (M, K), w (K, N), h, dh, a (M, N). Returns the sums of dh's columns within each row of tiles, fp32, if asked.
    """
    M, N = h.shape
    tile = tile or _tile(SLOPE_POINTER if reached(dh, dy, w) else UNALIGNED, dy, M, N)
    parts = torch.empty(triton.cdiv(M, tile.block_m), N, dtype=torch.float32, device=dy.device) if sums else None
    _write_slope(dh, a, parts, h, dy, w, group_m, input_precision, tile)
    return parts


@planned
def _write_slope(dh, a, parts, h, dy, w, group_m: int, input_precision: str, tile: Tile) -> None:
    (M, K), N = dy.shape, w.shape[1]
    launch(
        slope_tiled_kernel, (tile_count(M, N, tile),),
        dh, a, parts, h, dy, w,
        M, N, K,
        *dh.stride(), *_strides(a), *h.stride(), *dy.stride(), *w.stride(),
        **constants(tile, group_m, input_precision), **options(tile),
    )  # fmt: skip
