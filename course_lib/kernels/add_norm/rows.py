"""What both kernels do with a row: it is two blocks of columns, MAIN and REST (columns.py says why).

1152 columns in one block would be 2048 lanes, 896 of them idle; in two they are 1024 and 128.

Blocks of different widths lie differently in the threads, and a number for each row would have to travel from one
layout to the other through shared memory, 40 barriers a turn. So a program with two blocks takes one row at a time: its
mean is one number, which every thread has.

Where two programs share a row, the two blocks are its halves: MAIN the program's own, REST the other's. `half` is 0 in
the program that owns the first half and 1 in the other. Where a program has a row to itself, `half` is 0.
"""

import torch
import triton
import triton.language as tl

from course_lib.kernels.add_norm.tuning import parts_of
from course_lib.kernels.philox import keeps, random_bits
from course_lib.kernels.strides import common_unit

__all__ = [
    "kept_rows",
    "load_columns",
    "load_rows",
    "load_terms",
    "pitch",
    "row_sums",
    "row_unit",
    "rows_of",
    "sizes",
    "store_rows",
    "store_terms",
    "two_row_sums",
]


@triton.jit
def rows_of(block, BLOCK_M: tl.constexpr):
    """Rows of a block, (BLOCK_M, 1), in 64 bits."""
    first = tl.cast(block, tl.int64) * BLOCK_M
    if BLOCK_M == 1:
        offs = tl.full((1, 1), first, tl.int64)
    else:
        offs = first + tl.arange(0, BLOCK_M)[:, None]
    return offs


@triton.jit
def load_terms(ptr, block, n_rows, BLOCK_M: tl.constexpr, UNKNOWN: tl.constexpr = False):
    """A number for each row of a block, (BLOCK_M, 1), or for its only row one number; 0 beyond the last row.

    UNKNOWN: they may have changed since they were last loaded, as far as the compiler knows.
    """
    if BLOCK_M == 1:
        terms = tl.load(ptr + block, volatile=UNKNOWN)  # a turn has at least this row
    else:
        offs = tl.cast(block, tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
        terms = tl.load(ptr + offs, mask=offs < n_rows, other=0.0, volatile=UNKNOWN)[:, None]
    return terms


@triton.jit
def store_terms(ptr, terms, block, n_rows, BLOCK_M: tl.constexpr):
    if BLOCK_M == 1:
        tl.store(ptr + block, terms)
    else:
        offs = tl.cast(block, tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
        tl.store(ptr + offs, tl.reshape(terms, (BLOCK_M,)), mask=offs < n_rows)


@triton.jit
def _columns(first, COLUMNS: tl.constexpr, N: tl.constexpr):
    offs = first + tl.arange(0, COLUMNS)
    return offs, offs < N  # N is a constant: the mask of a full block vanishes


@triton.jit
def _load(ptr, offs_m, n_rows, stride, first, COLUMNS: tl.constexpr, N: tl.constexpr, UNIT: tl.constexpr):
    offs, inside = _columns(first, COLUMNS, N)
    ptrs = ptr + offs_m * (stride * UNIT) + offs[None, :]
    return tl.load(ptrs, mask=(offs_m < n_rows) & inside[None, :], other=0.0)  # (BLOCK_M, COLUMNS)


@triton.jit
def load_rows(
    ptr, offs_m, n_rows, stride,
    N: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, UNIT: tl.constexpr, half=0,
):  # fmt: skip
    """Both blocks of some rows, in the type of memory; 0 beyond the last row and column.

    Row strides come as a number of UNITs, so that the compiler sees rows that start at multiples of 16 bytes.
    """
    main = _load(ptr, offs_m, n_rows, stride, half * MAIN, MAIN, N, UNIT)
    rest = main
    if REST:
        rest = _load(ptr, offs_m, n_rows, stride, (1 - half) * MAIN, REST, N, UNIT)
    return main, rest


@triton.jit
def _store(
    ptr, x, offs_m, n_rows, stride,
    first, COLUMNS: tl.constexpr, N: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    offs, inside = _columns(first, COLUMNS, N)
    ptrs = ptr + offs_m * (stride * UNIT) + offs[None, :]
    tl.store(ptrs, x.to(ptr.dtype.element_ty), mask=(offs_m < n_rows) & inside[None, :])


@triton.jit
def store_rows(
    ptr, x, offs_m, n_rows, stride,
    N: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, UNIT: tl.constexpr, half=0,
):  # fmt: skip
    main, rest = x
    _store(ptr, main, offs_m, n_rows, stride, half * MAIN, MAIN, N, UNIT)
    if REST:
        _store(ptr, rest, offs_m, n_rows, stride, (1 - half) * MAIN, REST, N, UNIT)


@triton.jit
def load_columns(
    ptr, N: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, OTHER: tl.constexpr,
    UNKNOWN: tl.constexpr = False, half=0,
):  # fmt: skip
    """A vector of N, such as the weights, as two blocks of one row in fp32; OTHER where there is none."""
    if ptr is None:
        main = tl.full((1, MAIN), OTHER, tl.float32)
        rest = main
        if REST:
            rest = tl.full((1, REST), OTHER, tl.float32)
    else:
        offs, inside = _columns(half * MAIN, MAIN, N)
        main = tl.load(ptr + offs, mask=inside, other=0.0, volatile=UNKNOWN).to(tl.float32)[None, :]
        rest = main
        if REST:
            offs, inside = _columns((1 - half) * MAIN, REST, N)
            rest = tl.load(ptr + offs, mask=inside, other=0.0, volatile=UNKNOWN).to(tl.float32)[None, :]
    return main, rest


@triton.jit
def row_sums(x, REST: tl.constexpr):
    """Of each row over both blocks, in fp32: (rows, 1), or of the only row one number."""
    main, rest = x
    if main.shape[0] == 1:
        total = tl.sum(main)
        if REST:
            total += tl.sum(rest)
    else:
        total = tl.sum(main, axis=1, keep_dims=True)
    return total


@triton.jit
def two_row_sums(a, b, REST: tl.constexpr):
    """Of each row the sums of a and of b, taken together: the threads meet once and not twice."""
    if REST == a[0].shape[1]:  # halves of a row: one reduction for both
        sums = tl.sum(tl.join(a[0] + a[1], b[0] + b[1]), axis=1)
    else:
        sums = tl.sum(tl.join(a[0], b[0]), axis=1)
        if REST:
            sums += tl.sum(tl.join(a[1], b[1]), axis=1)
    first, second = tl.split(sums)
    if a[0].shape[0] == 1:
        totals = tl.sum(first), tl.sum(second)
    else:
        totals = first[:, None], second[:, None]
    return totals


@triton.jit
def _kept(seed, start, offs_m, least, first, COLUMNS: tl.constexpr, N: tl.constexpr):
    if N % 4 == 0:  # four neighbours in a row share a counter
        counters = (start + offs_m * N + first) // 4 + tl.arange(0, COLUMNS // 4)[None, :]
        bits = random_bits(seed, counters)
    else:  # rows start anywhere: all four numbers of a counter are made for each element, and one is taken
        index = start + offs_m * N + first + tl.arange(0, COLUMNS)[None, :]
        four = tl.reshape(random_bits(seed, index // 4), (offs_m.shape[0], COLUMNS, 4))
        mine = tl.arange(0, 4)[None, None, :] == (index % 4)[:, :, None]
        bits = tl.sum(tl.where(mine, four, 0), axis=2)
    return keeps(bits, least)


@triton.jit
def kept_rows(
    seed, start, offs_m, least,
    N: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, half=0,
):  # fmt: skip
    """Which elements dropout keeps, by their row-major index in a matrix of N columns: as `dropout` would."""
    main = _kept(seed, start, offs_m, least, half * MAIN, MAIN, N)
    rest = main
    if REST:
        rest = _kept(seed, start, offs_m, least, (1 - half) * MAIN, REST, N)
    return main, rest


def row_unit(*matrices: torch.Tensor | None) -> int:
    """The largest power of two, up to 8 elements, that divides all row strides."""
    return common_unit(x.stride(0) for x in matrices if x is not None and len(x) > 1)


def pitch(x: torch.Tensor | None, unit: int) -> int:
    """From row to row, in units; 0 where there is no matrix."""
    return 0 if x is None else x.stride(0) // unit


def sizes(width: int, unit: int, rows: int, halved: bool = False) -> dict[str, int]:
    """The constants of a kernel whose programs take `rows` rows of this width at a time."""
    main, rest = parts_of(width, rows, halved)
    return {"N": width, "MAIN": main, "REST": rest, "UNIT": unit, "BLOCK_M": rows}
