"""A kernel whose warps have jobs: one warp fetches, two groups of four compute. What forward and dk, dv share of it.

A kernel in Triton is written as if all its warps did the same, and the compiler overlaps what it can. On Hopper that
leaves the tensor cores idle while a program takes exponentials. Here the overlap is written down, in Gluon, Triton's
language one floor below: layouts, shared memory, barriers and the copy engine are said, nothing is scheduled for us.

    the producer     one warp: asks the copy engine (TMA) for tile after tile, as far ahead as there is room
    two consumers    each a group of four warps, as one wgmma wants, holding 64 rows of its own; both read the same
                     tiles. While one takes exponentials the tensor cores work for the other.

They meet at barriers in shared memory alone. A `ring` is two barriers for each of a few places: `full`, which the copy
engine passes when all bytes of a tile have landed, and `empty`, which both consumers pass when they have read it. Use
number t of a ring is at place t % PLACES, round t // PLACES. A barrier has a phase bit that flips each time it is
passed, so whoever waits says which round he waits for: its parity is enough, since nobody can be two rounds ahead.

Registers: every warp starts with 168, because the hardware shares them out evenly. The producer gives back all but 24,
the consumers take 240, and 64 rows x 128 columns of fp32 sums are 64 of these.

As in parts.py, rows of 72 columns are two tiles, 64 + 16. REST = 0: there is no second one and nobody reads it.
"""

import functools

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

__all__ = [
    "HALF",
    "LAUNCH",
    "ROWS",
    "add_products",
    "allocate",
    "allocate_terms",
    "arrived",
    "claim",
    "descriptors",
    "fetch",
    "multiprocessors",
    "new_ring",
    "products",
    "release",
    "send",
    "sync",
    "term_descriptors",
    "view",
    "wait_for_all",
]

HALF = gl.constexpr(64)  # rows of one consumer: the M of every wgmma
ROWS = 128  # of both
LAUNCH = {"num_warps": 4, "maxnreg": 168}  # 3 x 128 threads x 168 registers: all that a multiprocessor has
sync = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier  # of one group; Triton 3.6, 3.7


@gluon.jit
def new_ring(PLACES: gl.constexpr, READERS: gl.constexpr):
    full = gl.allocate_shared_memory(gl.int64, [PLACES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [PLACES, 1], mbarrier.MBarrierLayout())
    for place in gl.static_range(PLACES):
        mbarrier.init(full.index(place), count=1)  # passed by the producer's one promise, once its bytes are there
        mbarrier.init(empty.index(place), count=READERS)
    return full, empty


@gluon.jit
def claim(ring, turn, BYTES: gl.constexpr):
    """The producer, before use number `turn`: wait until the place is free, promise so many bytes."""
    full, empty = ring
    PLACES: gl.constexpr = full.shape[0]
    place = turn % PLACES
    # In round 0 nobody has to free anything: the phase "before" the first counts as passed.
    mbarrier.wait(empty.index(place), ((turn // PLACES) & 1) ^ 1)
    mbarrier.expect(full.index(place), BYTES)
    return place, full.index(place)


@gluon.jit
def arrived(ring, turn):
    """A consumer: wait for the bytes of use number `turn`; where they are."""
    full, _ = ring
    PLACES: gl.constexpr = full.shape[0]
    mbarrier.wait(full.index(turn % PLACES), (turn // PLACES) & 1)
    return turn % PLACES


@gluon.jit
def release(ring, turn):
    """A consumer: what came with use number `turn` has been read by all of this group."""
    _, empty = ring
    PLACES: gl.constexpr = empty.shape[0]
    mbarrier.arrive(empty.index(turn % PLACES), count=1)


@gluon.jit
def allocate(desc, rest_desc, PLACES: gl.constexpr, REST: gl.constexpr):
    """Tiles of one tensor: what the copy engine knows of it, and places in shared memory, main part and rest."""
    rows: gl.constexpr = desc.block_type.shape[2]
    main: gl.constexpr = desc.block_type.shape[3]
    buffer = gl.allocate_shared_memory(desc.dtype, [PLACES, 1, 1, rows, main], desc.layout)
    if REST:
        rest = gl.allocate_shared_memory(desc.dtype, [PLACES, 1, 1, rows, REST], rest_desc.layout)
        tiles = desc, rest_desc, buffer, rest
    else:  # a function returns no None, and nobody looks at these
        tiles = desc, desc, buffer, buffer
    return tiles


@gluon.jit
def allocate_terms(desc, PLACES: gl.constexpr):
    """The same for a number of each query."""
    count: gl.constexpr = desc.block_type.shape[1]
    return desc, gl.allocate_shared_memory(gl.float32, [PLACES, 1, count], desc.layout)


@gluon.jit
def fetch(tiles, place, bar, batch, head, row, REST: gl.constexpr):
    """Ask for rows from `row` on; `bar` hears when they are there. What lies outside the tensor arrives as zeros."""
    desc, rest_desc, buffer, rest = tiles
    tma.async_copy_global_to_shared(desc, [batch, head, row, 0], bar, buffer.index(place))
    if REST:
        MAIN: gl.constexpr = buffer.shape[4]
        tma.async_copy_global_to_shared(rest_desc, [batch, head, row, MAIN], bar, rest.index(place))


@gluon.jit
def send(desc, rest_desc, tiles, place, batch, head, row, REST: gl.constexpr):
    """The other way: a place of `tiles` to rows from `row` on. Nothing is written outside the tensor."""
    _, _, buffer, rest = tiles
    tma.async_copy_shared_to_global(desc, [batch, head, row, 0], buffer.index(place))
    if REST:
        MAIN: gl.constexpr = buffer.shape[4]
        tma.async_copy_shared_to_global(rest_desc, [batch, head, row, MAIN], rest.index(place))


@gluon.jit
def view(tiles, place, REST: gl.constexpr):
    """(rows, main) and (rows, rest) of one place, still in shared memory: wgmma reads its operands there."""
    _, _, buffer, rest = tiles
    ROWS: gl.constexpr = buffer.shape[3]
    MAIN: gl.constexpr = buffer.shape[4]
    main_view = buffer.index(place).reshape([ROWS, MAIN])
    rest_view = main_view
    if REST:
        rest_view = rest.index(place).reshape([ROWS, REST])
    return main_view, rest_view


@gluon.jit
def products(a, b, REST: gl.constexpr, S: gl.constexpr):
    """a bᵀ over the columns of both parts, in fp32 with layout S: asked for, not waited for."""
    a, a_rest = a
    b, b_rest = b
    M: gl.constexpr = a.shape[0]
    N: gl.constexpr = b.shape[0]
    s = warpgroup_mma(a, b.permute([1, 0]), gl.zeros([M, N], gl.float32, S), use_acc=False, is_async=True)
    if REST:
        s = warpgroup_mma(a_rest, b_rest.permute([1, 0]), s, is_async=True)
    return s


@gluon.jit
def add_products(acc, p, x, REST: gl.constexpr):
    """acc + p x, both parts, asked for: p from registers, x from shared memory."""
    main, rest = acc
    x, x_rest = x
    main = warpgroup_mma(p, x, main, is_async=True)
    if REST:
        rest = warpgroup_mma(p, x_rest, rest, is_async=True)
    return main, rest


@gluon.jit
def wait_for_all(acc, p, REST: gl.constexpr):
    """All products that were asked for are made. p is named because wgmma read its registers until now."""
    main, rest = acc
    if REST:
        main, rest, p = warpgroup_mma_wait(0, deps=[main, rest, p])
    else:
        main, p = warpgroup_mma_wait(0, deps=[main, p])
    return (main, rest), p


@functools.cache
def _layout(columns: int) -> gl.NVMMASharedLayout:
    """Rows of up to 128 bytes, swizzled as wgmma wants them; wider tiles are several such side by side."""
    return gl.NVMMASharedLayout(swizzle_byte_width=min(128, 2 * columns), element_bitwidth=16, rank=4)


def descriptors(rows: int, main: int, rest: int, *tensors: torch.Tensor) -> list[TensorDescriptor | None]:
    """For each (B, H, N, D) two: how to fetch `rows` rows of one head, main part and rest."""
    return [
        TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, columns], _layout(columns))
        if columns
        else None
        for x in tensors
        for columns in (main, rest)
    ]


@functools.cache
def _plain() -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)


def term_descriptors(count: int, *terms: torch.Tensor) -> list[TensorDescriptor]:
    """shift and delta (B H, n_q) fp32: how to fetch `count` numbers of one head."""
    return [TensorDescriptor(x, list(x.shape), list(x.stride()), [1, count], _plain()) for x in terms]


@functools.cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
