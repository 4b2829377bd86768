"""The fourth rung: two groups of warps take turns at the tensor cores, one multiplies while the other takes its GELU.

One warp fetches and two groups of four compute (rings.py). Each group has a tile of its own,
128 x 128, and the fetched blocks of x and w stand in one queue: all blocks of a tile, then all of the next, which is
the other group's. When the last block of a tile is asked for, the first ones of the other group's are already there;
and the results have as long to get their bias and GELU and to leave as that whole tile takes: 9200 clocks at K = 1152,
of which they need about 3000.

The groups pass each other the turn by barriers of their own. The queue's barriers would not do: a barrier only knows
whether its round is even or odd. A group would look two rounds ahead, at a place where the other group's blocks still
come and go, and might take an old block for its own.

128 x 128 results in fp32 are 128 registers a thread. Bias and GELU need others beside them, and all fit into the 240
that a thread has. The price: a product fetches twice as many tiles along M as with tiles of 128 x 256, which is 8 bytes
more a clock and multiprocessor from the L2 cache.

Results leave in halves of 64 columns, each through a place in shared memory of its own, a second result through the
same places as the first. h, which the slope's end needs, arrives in these places too, asked for when the last blocks
of its tile are on their way.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from course_lib.kernels.descriptors import make_context_current
from course_lib.kernels.hardware import multiprocessors
from course_lib.kernels.launching import launch, planned
from course_lib.kernels.linear_gelu.gelu import gelu, gelu_and_slope
from course_lib.kernels.linear_gelu.tuning import Turns
from course_lib.kernels.product_tiles import tile_position
from course_lib.kernels.rings import LAUNCH, arrived, claim, new_ring, release, sync

__all__ = ["TILE", "gelu_pingpong_kernel", "slope_pingpong_kernel", "write_gelu_pingpong", "write_slope_pingpong"]

TILE = gl.constexpr(128)  # rows and columns of the result that one group makes
HALF = gl.constexpr(64)  # of its columns: what leaves at once
BLOCK_K = gl.constexpr(64)  # 128 bytes: a row of a swizzled tile in shared memory


@gluon.jit
def _allocate(a_desc, b_desc, end_desc, STAGES: gl.constexpr):
    """Places for blocks of the factors, and for each group two, for the halves of its results."""
    a = gl.allocate_shared_memory(a_desc.dtype, [STAGES, TILE, BLOCK_K], a_desc.layout)
    b_rows: gl.constexpr = b_desc.block_type.shape[0]
    b_columns: gl.constexpr = b_desc.block_type.shape[1]
    b = gl.allocate_shared_memory(b_desc.dtype, [STAGES, b_rows, b_columns], b_desc.layout)
    ends = gl.allocate_shared_memory(end_desc.dtype, [4, TILE, HALF], end_desc.layout)
    return a, b, ends


@gluon.jit
def _produce(
    descs, buffers, rings, M, N, K, tiles,
    GROUP_M: gl.constexpr, B_BY_K: gl.constexpr, WITH_H: gl.constexpr,
):  # fmt: skip
    a_desc, b_desc, h_desc = descs
    a, b, ends = buffers
    ring = rings[0]
    BYTES: gl.constexpr = 2 * 2 * TILE * BLOCK_K
    H_BYTES: gl.constexpr = 2 * TILE * TILE
    turn, count = 0, 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        tile_m, tile_n = tile_position(tile, M, N, TILE, TILE, GROUP_M)
        m, n = tile_m * TILE, tile_n * TILE
        for k in range(0, K, BLOCK_K):
            place, bar = claim(ring, turn, BYTES)
            tma.async_copy_global_to_shared(a_desc, [m, k], bar, a.index(place))  # (TILE, BLOCK_K)
            if B_BY_K:
                tma.async_copy_global_to_shared(b_desc, [k, n], bar, b.index(place))  # (BLOCK_K, TILE)
            else:
                tma.async_copy_global_to_shared(b_desc, [n, k], bar, b.index(place))  # (TILE, BLOCK_K)
            turn += 1
        if WITH_H:  # use number `count` of two places: those of one group come round every second time
            place, bar = claim(rings[2], count, H_BYTES)
            tma.async_copy_global_to_shared(h_desc, [m, n], bar, ends.index(2 * place))
            tma.async_copy_global_to_shared(h_desc, [m, n + HALF], bar, ends.index(2 * place + 1))
        count += 1


@gluon.jit
def _block_product(acc, buffers, place, B_BY_K: gl.constexpr, FIRST: gl.constexpr):
    """acc + a b of one block, (TILE, TILE): asked for, not waited for."""
    a, b, _ends = buffers
    right = b.index(place)
    if not B_BY_K:
        right = right.permute([1, 0])
    # (TILE, BLOCK_K) (BLOCK_K, TILE)
    return warpgroup_mma(a.index(place), right, acc, use_acc=not FIRST, is_async=True)


@gluon.jit
def _new_turns():
    """Barrier WHICH is passed by the other group, when all blocks of its tile have arrived."""
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(turns.index(i), count=1)
    return turns


@gluon.jit
def _tile_product(buffers, rings, count, blocks, WHICH: gl.constexpr, ACC: gl.constexpr, B_BY_K: gl.constexpr):
    """Tile number `count` of this program; one product is always on its way while the next is asked for."""
    ring, turns = rings[0], rings[1]
    # Of its tile i the first group waits for round i - 1 of its barrier (the one before the first counts as passed),
    # the second for round i.
    mbarrier.wait(turns.index(WHICH), ((count // 2) & 1) ^ (1 - WHICH))
    turn = count * blocks
    zeros = gl.zeros([TILE, TILE], gl.float32, ACC)
    acc = warpgroup_mma_wait(1, deps=[_block_product(zeros, buffers, arrived(ring, turn), B_BY_K, True)])
    for _i in range(1, blocks):
        turn += 1
        acc = _block_product(acc, buffers, arrived(ring, turn), B_BY_K, False)
        acc = warpgroup_mma_wait(1, deps=[acc])
        release(ring, turn - 1)
    mbarrier.arrive(turns.index(1 - WHICH), count=1)
    acc = warpgroup_mma_wait(0, deps=[acc])
    release(ring, turn)
    return acc


@gluon.jit
def _halves(x, LAYOUT: gl.constexpr):
    """Left and right columns. The threads that hold them stay the same."""
    left, right = x.reshape([TILE, 2, HALF]).permute([0, 2, 1]).split()
    return gl.convert_layout(left, LAYOUT), gl.convert_layout(right, LAYOUT)


@gluon.jit
def _leave(desc, end, x, m, n):
    """x to rows from m and columns from n on, by way of `end`; nothing is written outside the matrix.

    Halves leave in turn, left and right: what used this place before left two calls ago.
    """
    tma.store_wait(1)
    sync()
    end.store(x.to(desc.dtype))
    fence_async_shared()  # the copy engine reads shared memory by another way than threads write it
    sync()
    tma.async_copy_shared_to_global(desc, [m, n], end)


@gluon.jit
def _biased(h, bias_ptr, n, N, LAYOUT: gl.constexpr):
    if bias_ptr is not None:
        offs_n = n + gl.arange(0, HALF, gl.SliceLayout(0, LAYOUT))
        h += gl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(gl.float32)[None, :]
    return h


@gluon.jit
def _consume_gelu(
    outs, bias_ptr, buffers, rings, M, N, K, tiles,
    WHICH: gl.constexpr, GROUP_M: gl.constexpr,
):  # fmt: skip
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    PART: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    out_desc, h_desc = outs
    left_end, right_end = buffers[2].index(2 * WHICH), buffers[2].index(2 * WHICH + 1)
    blocks = gl.cdiv(K, BLOCK_K)
    count = WHICH
    for tile in range(gl.program_id(0) + WHICH * gl.num_programs(0), tiles, 2 * gl.num_programs(0)):
        tile_m, tile_n = tile_position(tile, M, N, TILE, TILE, GROUP_M)
        m, n = tile_m * TILE, tile_n * TILE
        left, right = _halves(_tile_product(buffers, rings, count, blocks, WHICH, ACC, False), PART)
        left = _biased(left, bias_ptr, n, N, PART)
        right = _biased(right, bias_ptr, n + HALF, N, PART)
        if h_desc is not None:
            _leave(h_desc, left_end, left, m, n)
            _leave(h_desc, right_end, right, m, n + HALF)
        _leave(out_desc, left_end, gelu(left), m, n)
        _leave(out_desc, right_end, gelu(right), m, n + HALF)
        count += 2
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "K", "tiles"])
def gelu_pingpong_kernel(
    out_desc, h_desc, x_desc, w_desc, bias_ptr,
    M, N, K, tiles,
    GROUP_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    buffers = _allocate(x_desc, w_desc, out_desc, STAGES)
    rings = new_ring(STAGES, 1), _new_turns()
    fence_async_shared()
    outs = out_desc, h_desc
    gl.warp_specialize(
        [
            (_consume_gelu, (outs, bias_ptr, buffers, rings, M, N, K, tiles, 0, GROUP_M)),
            (_consume_gelu, (outs, bias_ptr, buffers, rings, M, N, K, tiles, 1, GROUP_M)),
            (_produce, ((x_desc, w_desc, out_desc), buffers, rings, M, N, K, tiles, GROUP_M, False, False)),
        ],
        [4, 1],  # warps of the second and third
        [240, 24],  # and their registers
    )


@gluon.jit
def _sloped(da, end, sums_ptr, tile_m, n, N, LAYOUT: gl.constexpr):
    """gelu(h) and da gelu'(h) of one half, whose h has arrived at `end`."""
    a, slope = gelu_and_slope(end.load(LAYOUT).to(gl.float32))
    dh = da * slope
    if sums_ptr is not None:
        offs_n = n + gl.arange(0, HALF, gl.SliceLayout(0, LAYOUT))
        gl.store(sums_ptr + gl.to_tensor(tile_m).to(gl.int64) * N + offs_n, gl.sum(dh, 0), mask=offs_n < N)
    return a, dh


@gluon.jit
def _consume_slope(
    outs, sums_ptr, buffers, rings, M, N, K, tiles,
    WHICH: gl.constexpr, GROUP_M: gl.constexpr,
):  # fmt: skip
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    PART: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    dh_desc, a_desc = outs
    h_ring = rings[2]
    left_end, right_end = buffers[2].index(2 * WHICH), buffers[2].index(2 * WHICH + 1)
    blocks = gl.cdiv(K, BLOCK_K)
    count = WHICH
    for tile in range(gl.program_id(0) + WHICH * gl.num_programs(0), tiles, 2 * gl.num_programs(0)):
        tile_m, tile_n = tile_position(tile, M, N, TILE, TILE, GROUP_M)
        m, n = tile_m * TILE, tile_n * TILE
        left, right = _halves(_tile_product(buffers, rings, count, blocks, WHICH, ACC, True), PART)
        arrived(h_ring, count)
        a, dh_left = _sloped(left, left_end, sums_ptr, tile_m, n, N, PART)
        dh_left = dh_left.to(dh_desc.dtype)
        if a_desc is not None:
            _leave(a_desc, left_end, a, m, n)
        a, dh_right = _sloped(right, right_end, sums_ptr, tile_m, n + HALF, N, PART)
        if a_desc is not None:
            _leave(a_desc, right_end, a, m, n + HALF)
        _leave(dh_desc, left_end, dh_left, m, n)
        _leave(dh_desc, right_end, dh_right, m, n + HALF)
        tma.store_wait(0)
        sync()
        release(h_ring, count)  # h of the next tile but one may come
        count += 2


@gluon.jit(do_not_specialize=["M", "K", "tiles"])
def slope_pingpong_kernel(
    dh_desc, a_desc, sums_ptr, h_desc, dy_desc, w_desc,
    M, N, K, tiles,
    GROUP_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    buffers = _allocate(dy_desc, w_desc, h_desc, STAGES)
    rings = new_ring(STAGES, 1), _new_turns(), new_ring(2, 1)
    fence_async_shared()
    outs = dh_desc, a_desc
    gl.warp_specialize(
        [
            (_consume_slope, (outs, sums_ptr, buffers, rings, M, N, K, tiles, 0, GROUP_M)),
            (_consume_slope, (outs, sums_ptr, buffers, rings, M, N, K, tiles, 1, GROUP_M)),
            (_produce, ((dy_desc, w_desc, h_desc), buffers, rings, M, N, K, tiles, GROUP_M, True, True)),
        ],
        [4, 1],
        [240, 24],
    )


_LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)


def _described(x, rows: int, columns: int) -> TensorDescriptor:
    make_context_current(x)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns], _LAYOUT)


def _launch(kernel, M: int, N: int, K: int, device, turns: Turns, *given) -> None:
    tiles = triton.cdiv(M, TILE.value) * triton.cdiv(N, TILE.value)
    launch(
        kernel, (min(tiles, multiprocessors(device)),),
        *given,
        M, N, K, tiles,
        GROUP_M=turns.group_m, STAGES=turns.stages, **LAUNCH,
    )  # fmt: skip


def _result(x) -> TensorDescriptor | None:
    return None if x is None else _described(x, TILE.value, HALF.value)


@planned
def write_gelu_pingpong(out, h, x, w, bias, turns: Turns) -> None:
    """gelu(x wᵀ + bias) into out, and x wᵀ + bias into h if that is given; 2-byte types that the copy engine reaches.

    x (M, K), w (N, K), out, h (M, N), bias (N,) contiguous. FLOP: 2 M N K.
    """
    (M, K), N = x.shape, w.shape[0]
    factors = _described(x, TILE.value, BLOCK_K.value), _described(w, TILE.value, BLOCK_K.value)
    _launch(gelu_pingpong_kernel, M, N, K, x.device, turns, _result(out), _result(h), *factors, bias)


def write_slope_pingpong(dh, a, h, dy, w, sums: bool, turns: Turns) -> torch.Tensor | None:
    """(dy w) gelu'(h) into dh, which may be h itself; gelu(h) into a if that is given.

    dy (M, K), w (K, N), h, dh, a (M, N). Returns the sums of dh's columns within each 128 rows, fp32, if asked.
    """
    M, N = h.shape
    parts = torch.empty(triton.cdiv(M, TILE.value), N, dtype=torch.float32, device=dy.device) if sums else None
    _write_slope(dh, a, parts, h, dy, w, turns)
    return parts


@planned
def _write_slope(dh, a, parts, h, dy, w, turns: Turns) -> None:
    (M, K), N = dy.shape, w.shape[1]
    factors = _described(dy, TILE.value, BLOCK_K.value), _described(w, BLOCK_K.value, TILE.value)
    _launch(slope_pingpong_kernel, M, N, K, dy.device, turns, _result(dh), _result(a), parts, _result(h), *factors)
