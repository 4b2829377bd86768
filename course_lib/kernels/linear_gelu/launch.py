"""Tensors in, one launch: the three plain rungs of both products."""

import torch
import triton

from course_lib.kernels import tiles
from course_lib.kernels.descriptors import described
from course_lib.kernels.linear_gelu.persistent import gelu_persistent_kernel, slope_persistent_kernel
from course_lib.kernels.linear_gelu.rungs import reached
from course_lib.kernels.linear_gelu.tiled import gelu_tiled_kernel, slope_tiled_kernel
from course_lib.kernels.linear_gelu.tuning import Blocks

__all__ = [
    "GROUP_M",
    "reached",
    "write_gelu_persistent",
    "write_gelu_tiled",
    "write_slope_persistent",
    "write_slope_tiled",
]

GROUP_M = 8  # tile rows a group
INTERPRETED = tiles.Tile(32, 64, 16, 4, 1, rate=1)
# The slope's end holds three numbers for each of the product: 128 x 256 spills 4 KB a thread.
SLOPE_POINTER = {size: table[-2:] for size, table in tiles.POINTER.items()}


def _tile(table: dict, x: torch.Tensor, M: int, N: int) -> tiles.Tile:
    if x.device.type != "cuda":
        return INTERPRETED
    return tiles.fastest(table[x.element_size()], M, N, tiles.multiprocessors(x.device))


def _strides(x: torch.Tensor | None) -> tuple[int, int]:
    return (0, 0) if x is None else x.stride()


def _options(tile) -> dict:
    return {"num_warps": tile.warps, "num_stages": tile.stages}


def _blocks(tile, group_m: int, input_precision: str) -> dict:
    sizes = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k}
    return sizes | {"GROUP_M": group_m, "INPUT_PRECISION": input_precision}


def _count(M: int, N: int, tile) -> int:
    return triton.cdiv(M, tile.block_m) * triton.cdiv(N, tile.block_n)


def write_gelu_tiled(out, h, x, w, bias, group_m: int = GROUP_M, input_precision: str = "ieee", tile=None) -> None:
    """gelu(x wᵀ + bias) into out, and x wᵀ + bias into h if that is given. x (M, K), w (N, K), out, h (M, N)."""
    (M, K), N = x.shape, w.shape[0]
    tile = tile or _tile(tiles.POINTER if reached(out, x, w) else tiles.UNALIGNED, x, M, N)
    gelu_tiled_kernel[(_count(M, N, tile),)](
        out, h, x, w, bias,
        M, N, K,
        *out.stride(), *_strides(h), *x.stride(), *w.stride(),
        **_blocks(tile, group_m, input_precision), **_options(tile),
    )  # fmt: skip


def write_gelu_persistent(out, h, x, w, bias, blocks: Blocks, input_precision: str = "ieee") -> None:
    """The same where `reached(out, h, x, w)`; bias contiguous."""
    (M, K), N = x.shape, w.shape[0]
    block_m, block_n, block_k = blocks.block_m, blocks.block_n // blocks.parts, blocks.block_k
    gelu_persistent_kernel[(blocks.grid(_count(M, N, blocks), x.device),)](
        described(out, False, block_m, block_n), None if h is None else described(h, False, block_m, block_n),
        described(x, False, block_m, block_k), described(w, False, blocks.block_n, block_k), bias,
        M, N, K,
        **_blocks(blocks, GROUP_M, input_precision), PARTS=blocks.parts, FLATTEN=blocks.flatten, **_options(blocks),
    )  # fmt: skip


def _row_sums(N: int, M: int, block_m: int, device) -> torch.Tensor:
    return torch.empty(triton.cdiv(M, block_m), N, dtype=torch.float32, device=device)


def write_slope_tiled(
    dh, a, h, dy, w, sums: bool, group_m: int = GROUP_M, input_precision: str = "ieee", tile=None
) -> torch.Tensor | None:
    """(dy w) gelu'(h) into dh, which may be h itself; gelu(h) into a if that is given.

    dy (M, K), w (K, N), h, dh, a (M, N). Returns the sums of dh's columns within each row of tiles, fp32, if asked.
    """
    (M, K), N = dy.shape, w.shape[1]
    tile = tile or _tile(SLOPE_POINTER if reached(dh, dy, w) else tiles.UNALIGNED, dy, M, N)
    parts = _row_sums(N, M, tile.block_m, dy.device) if sums else None
    slope_tiled_kernel[(_count(M, N, tile),)](
        dh, a, parts, h, dy, w,
        M, N, K,
        *dh.stride(), *_strides(a), *h.stride(), *dy.stride(), *w.stride(),
        **_blocks(tile, group_m, input_precision), **_options(tile),
    )  # fmt: skip
    return parts


def write_slope_persistent(
    dh, a, h, dy, w, sums: bool, blocks: Blocks, input_precision: str = "ieee"
) -> torch.Tensor | None:
    """The same where `reached(dh, a, h, dy, w)`."""
    (M, K), N = dy.shape, w.shape[1]
    block_m, block_n, block_k = blocks.block_m, blocks.block_n // blocks.parts, blocks.block_k
    parts = _row_sums(N, M, block_m, dy.device) if sums else None
    slope_persistent_kernel[(blocks.grid(_count(M, N, blocks), dy.device),)](
        described(dh, False, block_m, block_n), None if a is None else described(a, False, block_m, block_n), parts,
        described(h, False, block_m, block_n),
        described(dy, False, block_m, block_k), described(w, False, block_k, blocks.block_n),
        M, N, K,
        **_blocks(blocks, GROUP_M, input_precision), PARTS=blocks.parts, FLATTEN=blocks.flatten, **_options(blocks),
    )  # fmt: skip
    return parts
