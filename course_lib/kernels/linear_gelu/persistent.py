"""The third rung: programs that stay and walk over many tiles, which the copy engine (TMA) fetches and takes away.

With `flatten` the two loops, over tiles and along K, are one: the loads of the next tile are in flight while this one
gets its bias and its GELU. The tensor cores wait meanwhile: 128 x 256 results cost about 4000 clocks of a tile's
18,400 at K = 1152, and of its 65,500 at K = 4096. What ends that wait is the rung after this one, pingpong.py, or two
programs a multiprocessor whose ends fall into different times.

Where a tile has a second result, or is joined with a third matrix, it leaves in PARTS, one after the other through the
same place in shared memory.
"""

import torch
import triton
import triton.language as tl

from course_lib.kernels.descriptors import described
from course_lib.kernels.launching import launch, planned
from course_lib.kernels.linear_gelu.gelu import gelu, gelu_and_slope
from course_lib.kernels.linear_gelu.tuning import Blocks
from course_lib.kernels.product_tiles import GROUP_M, constants, options, tile_count, tile_position

__all__ = ["gelu_persistent_kernel", "slope_persistent_kernel", "write_gelu_persistent", "write_slope_persistent"]


@triton.jit
def _halves(x):
    """The left and the right half of the columns of a block; nothing moves between threads."""
    M: tl.constexpr = x.shape[0]
    N: tl.constexpr = x.shape[1]
    return tl.split(tl.permute(tl.reshape(x, (M, 2, N // 2)), (0, 2, 1)))


@triton.jit
def _gelu_out(h, out_desc, h_desc, bias_ptr, m, n, N):
    if bias_ptr is not None:
        offs_n = n + tl.arange(0, h.shape[1])
        h += tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
    if h_desc is not None:
        h_desc.store([m, n], h.to(h_desc.dtype))
    out_desc.store([m, n], gelu(h).to(out_desc.dtype))


@triton.jit
def gelu_persistent_kernel(
    out_desc, h_desc, x_desc, w_desc, bias_ptr,
    M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, PARTS: tl.constexpr,
    FLATTEN: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    n_tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), n_tiles, tl.num_programs(0), flatten=FLATTEN):
        tile_m, tile_n = tile_position(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            # What lies outside a matrix arrives as zeros, and nothing is written there: no masks.
            x, w = x_desc.load([m, k]), w_desc.load([n, k])  # (BLOCK_M, BLOCK_K), (BLOCK_N, BLOCK_K)
            acc = tl.dot(x, w.T, acc, input_precision=INPUT_PRECISION)  # (BLOCK_M, BLOCK_N)
        if PARTS == 1:
            _gelu_out(acc, out_desc, h_desc, bias_ptr, m, n, N)
        else:
            left, right = _halves(acc)
            _gelu_out(left, out_desc, h_desc, bias_ptr, m, n, N)
            _gelu_out(right, out_desc, h_desc, bias_ptr, m, n + BLOCK_N // 2, N)


@triton.jit
def _slope_out(da, dh_desc, a_desc, sums_ptr, h_desc, tile_m, m, n, N):
    a, slope = gelu_and_slope(h_desc.load([m, n]).to(tl.float32))
    dh = da * slope
    if sums_ptr is not None:
        offs_n = n + tl.arange(0, da.shape[1])
        tl.store(sums_ptr + tl.cast(tile_m, tl.int64) * N + offs_n, tl.sum(dh, axis=0), mask=offs_n < N)
    if a_desc is not None:
        a_desc.store([m, n], a.to(a_desc.dtype))
    dh_desc.store([m, n], dh.to(dh_desc.dtype))


@triton.jit
def slope_persistent_kernel(
    dh_desc, a_desc, sums_ptr, h_desc, dy_desc, w_desc,
    M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, PARTS: tl.constexpr,
    FLATTEN: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    n_tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), n_tiles, tl.num_programs(0), flatten=FLATTEN):
        tile_m, tile_n = tile_position(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            dy, w = dy_desc.load([m, k]), w_desc.load([k, n])  # (BLOCK_M, BLOCK_K), (BLOCK_K, BLOCK_N)
            acc = tl.dot(dy, w, acc, input_precision=INPUT_PRECISION)  # (BLOCK_M, BLOCK_N)
        if PARTS == 1:
            _slope_out(acc, dh_desc, a_desc, sums_ptr, h_desc, tile_m, m, n, N)
        else:
            left, right = _halves(acc)
            _slope_out(left, dh_desc, a_desc, sums_ptr, h_desc, tile_m, m, n, N)
            _slope_out(right, dh_desc, a_desc, sums_ptr, h_desc, tile_m, m, n + BLOCK_N // 2, N)


@planned
def write_gelu_persistent(out, h, x, w, bias, blocks: Blocks, input_precision: str = "ieee") -> None:
    """The same where `reached(out, h, x, w)`; bias contiguous."""
    (M, K), N = x.shape, w.shape[0]
    block_m, block_n, block_k = blocks.block_m, blocks.block_n // blocks.parts, blocks.block_k
    launch(
        gelu_persistent_kernel, (blocks.grid(tile_count(M, N, blocks), x.device),),
        described(out, False, block_m, block_n), None if h is None else described(h, False, block_m, block_n),
        described(x, False, block_m, block_k), described(w, False, blocks.block_n, block_k), bias,
        M, N, K,
        **constants(blocks, GROUP_M, input_precision), PARTS=blocks.parts, FLATTEN=blocks.flatten, **options(blocks),
    )  # fmt: skip


def write_slope_persistent(
    dh, a, h, dy, w, sums: bool, blocks: Blocks, input_precision: str = "ieee"
) -> torch.Tensor | None:
    """The same where `reached(dh, a, h, dy, w)`."""
    M, N = h.shape
    parts = torch.empty(triton.cdiv(M, blocks.block_m), N, dtype=torch.float32, device=dy.device) if sums else None
    _write_slope(dh, a, parts, h, dy, w, blocks, input_precision)
    return parts


@planned
def _write_slope(dh, a, parts, h, dy, w, blocks: Blocks, input_precision: str) -> None:
    (M, K), N = dy.shape, w.shape[1]
    block_m, block_n, block_k = blocks.block_m, blocks.block_n // blocks.parts, blocks.block_k
    launch(
        slope_persistent_kernel, (blocks.grid(tile_count(M, N, blocks), dy.device),),
        described(dh, False, block_m, block_n), None if a is None else described(a, False, block_m, block_n), parts,
        described(h, False, block_m, block_n),
        described(dy, False, block_m, block_k), described(w, False, block_k, blocks.block_n),
        M, N, K,
        **constants(blocks, GROUP_M, input_precision), PARTS=blocks.parts, FLATTEN=blocks.flatten, **options(blocks),
    )  # fmt: skip
