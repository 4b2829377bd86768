"""What the kernels with jobs for their warps, groups_forward.py, groups_dkdv.py and groups_onepass.py, share: tiles.

One warp fetches tiles (the producer), and two groups of four warps compute (the consumers; forward up to three).
rings.py has the barriers where they meet. Each consumer holds 64 rows of its own, and all read the same tiles. While
one takes exponentials the tensor cores work for another. Of two consumers each has 240 registers a thread, and 64 of
them hold its 64 rows x 128 columns of fp32 sums.

Rows of 72 columns are two tiles, 64 + 16 (columns.py). REST = 0: there is no second tile and nobody reads it.
"""

import functools

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from course_lib.kernels.descriptors import Shifted, make_context_current
from course_lib.kernels.rings import sync

__all__ = [
    "HALF",
    "ROWS",
    "add_products",
    "allocate",
    "allocate_terms",
    "cut",
    "descriptors",
    "ending_descriptors",
    "fetch",
    "fetch_valid",
    "products",
    "send",
    "store",
    "term_descriptors",
    "view",
    "wait_for_all",
    "zeros",
]

HALF = gl.constexpr(64)  # rows of one consumer: the M of every wgmma
ROWS = 128  # of both


@gluon.jit
def allocate(desc, rest_desc, PLACES: gl.constexpr, REST: gl.constexpr):
    """Tiles of one tensor: what the copy engine knows of it, and places in shared memory, main part and rest."""
    buffer = gl.allocate_shared_memory(desc.dtype, [PLACES] + desc.block_type.shape, desc.layout)
    if REST:
        rest = gl.allocate_shared_memory(desc.dtype, [PLACES] + rest_desc.block_type.shape, rest_desc.layout)
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
def fetch_valid(tiles, place, bar, batch, head, row, n_valid, n, REST: gl.constexpr):
    """The same from tensors as `ending_descriptors` describes them: rows from n_valid on arrive as zeros. One row at
    least must not."""
    desc, rest_desc, buffer, rest = tiles
    tma.async_copy_global_to_shared(desc, [batch, head, n_valid, n - n_valid + row, 0], bar, buffer.index(place))
    if REST:
        MAIN: gl.constexpr = buffer.shape[5]
        where = [batch, head, n_valid, n - n_valid + row, MAIN]
        tma.async_copy_global_to_shared(rest_desc, where, bar, rest.index(place))


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
    ROWS: gl.constexpr = buffer.shape[-2]
    MAIN: gl.constexpr = buffer.shape[-1]
    main_view = buffer.index(place).reshape([ROWS, MAIN])
    rest_view = main_view
    if REST:
        rest_view = rest.index(place).reshape([ROWS, REST])
    return main_view, rest_view


@gluon.jit
def zeros(MAIN: gl.constexpr, REST: gl.constexpr):
    """Sums of one consumer: (HALF, MAIN) and (HALF, REST) in fp32."""
    main = gl.zeros([HALF, MAIN], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MAIN, 16]))
    rest = main
    if REST:
        rest = gl.zeros([HALF, REST], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, REST, 16]))
    return main, rest


@gluon.jit
def store(to, acc, REST: gl.constexpr):
    """The sums, rounded, to one place."""
    to[0].store(acc[0].to(to[0].dtype))
    if REST:
        to[1].store(acc[1].to(to[0].dtype))


@gluon.jit
def products(a, b, REST: gl.constexpr, S: gl.constexpr):
    """a bᵀ over the columns of both tiles, asked for and not waited for: a (M, D), b (N, D) -> (M, N) in fp32."""
    a, a_rest = a
    b, b_rest = b
    M: gl.constexpr = a.shape[0]
    N: gl.constexpr = b.shape[0]
    zeros = gl.zeros([M, N], gl.float32, S)
    s = warpgroup_mma(a, b.permute([1, 0]), zeros, use_acc=False, is_async=True)  # (M, MAIN) (MAIN, N)
    if REST:
        s = warpgroup_mma(a_rest, b_rest.permute([1, 0]), s, is_async=True)  # (M, REST) (REST, N)
    return s


@gluon.jit
def add_products(acc, p, x, REST: gl.constexpr):
    """acc + p x, both tiles, asked for: p from registers, x from shared memory."""
    main, rest = acc
    x, x_rest = x
    main = warpgroup_mma(p, x, main, is_async=True)  # (M, N) (N, MAIN)
    if REST:
        rest = warpgroup_mma(p, x_rest, rest, is_async=True)  # (M, N) (N, REST)
    return main, rest


@gluon.jit
def wait_for_all(acc, p, REST: gl.constexpr):
    """Wait until all products that were asked for are made. p is named because wgmma read its registers until now."""
    main, rest = acc
    if REST:
        main, rest, p = warpgroup_mma_wait(0, deps=[main, rest, p])
    else:
        main, p = warpgroup_mma_wait(0, deps=[main, p])
    return (main, rest), p


@gluon.jit
def _cut_rows(x, rows):
    """Zeros behind the first `rows` rows of a tile in shared memory. What it holds before is written again: storing
    zeros alone, 16 rows at a time, costs a barrier each and was slower."""
    COLUMNS: gl.constexpr = x.shape[1]
    EIGHTS: gl.constexpr = COLUMNS // 8  # of a row: 16 bytes a thread
    BY: gl.constexpr = gl.BlockedLayout([1, 8], [32 // EIGHTS, EIGHTS], [4, 1], [1, 0])
    inside = gl.arange(0, x.shape[0], gl.SliceLayout(1, BY)) < rows
    values = x.load(BY)
    x.store(gl.where(inside[:, None], values, gl.zeros_like(values)))


@gluon.jit
def cut(x, rows, REST: gl.constexpr):
    """Keys behind the length become zeros where they lie, in shared memory."""
    main, rest = x
    _cut_rows(main, rows)
    if REST:
        _cut_rows(rest, rows)
    fence_async_shared()  # wgmma reads shared memory by another way than threads write it
    sync()


@functools.cache
def _layout(columns: int, itemsize: int = 2, rank: int = 4) -> gl.NVMMASharedLayout:
    """Rows of up to 128 bytes, swizzled as wgmma wants them; wider tiles are several such side by side."""
    swizzle = min(128, itemsize * columns)
    return gl.NVMMASharedLayout(swizzle_byte_width=swizzle, element_bitwidth=8 * itemsize, rank=rank)


def descriptors(rows: int, main: int, rest: int, *tensors: torch.Tensor) -> list[TensorDescriptor | None]:
    """For each (B, H, N, D) two: how to fetch `rows` rows of one head, main part and rest."""
    make_context_current(tensors[0])
    return [
        TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, columns], _layout(columns, x.element_size()))
        if columns
        else None
        for x in tensors
        for columns in (main, rest)
    ]


def ending_descriptors(rows: int, main: int, rest: int, x: torch.Tensor) -> list[TensorDescriptor | None]:
    """The same for x (B, H, N, D) whose sequences end before N: the copy engine writes zeros for what is behind.

    It knows one end, that of the tensor. So rows are counted twice, (B, H, N + 1, N, D), both by the step of a row and
    from N rows before x on. Place (n, N - n + row) is row `row` of x, and lies outside from row = n on. Memory before x
    need not be there, as long as some of a tile lies inside: for one wholly outside an H200 reported an illegal access.
    """
    B, H, N, D = x.shape
    step = x.stride(2)
    before = Shifted(x, -N * step)
    make_context_current(x)
    return [
        TensorDescriptor(
            before, [B, H, N + 1, N, D], [*x.stride()[:2], step, step, 1], [1, 1, 1, rows, columns],
            _layout(columns, x.element_size(), 5),
        )
        if columns
        else None
        for columns in (main, rest)
    ]  # fmt: skip


@functools.cache
def _plain() -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)


def term_descriptors(count: int, *terms: torch.Tensor) -> list[TensorDescriptor]:
    """shift and delta (B H, n_q) fp32: how to fetch `count` numbers of one head."""
    return [TensorDescriptor(x, list(x.shape), list(x.stride()), [1, count], _plain()) for x in terms]
