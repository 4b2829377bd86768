"""Rows of any head size without padding: a power of two of columns, and the rest beside it.

Triton's blocks are powers of two and a product of tensor cores sums at least 16 columns. Head size 72 in one block
would be 128 columns, 56 of them zeros that are multiplied all the same. In two parts it is 64 + 16: 80 columns of
arithmetic, and 72 in memory, because the last 8 are masked.

Every block of rows below is a pair (main, rest). Where REST = 0 nobody reads `rest`; it is `main` again, since a Triton
tuple holds no None, and costs nothing.
"""

import triton
import triton.language as tl

__all__ = [
    "add_products",
    "load_rows",
    "matrix_products",
    "rows_to_walk",
    "scale_rows",
    "split",
    "store_rows",
    "zero_rows",
]


def split(head_size: int) -> tuple[int, int]:
    """Columns of the two parts: 64 -> (64, 0), 72 -> (64, 16), 96 -> (64, 32), 112 -> (128, 0)."""
    main = max(16, 1 << (head_size.bit_length() - 1))
    if head_size <= main:
        return main, 0
    rest = max(16, triton.next_power_of_2(head_size - main))
    return (2 * main, 0) if rest == main else (main, rest)


@triton.jit
def _pointers(
    ptr, first, stride_row, stride_col,
    ROWS: tl.constexpr, FIRST: tl.constexpr, COLUMNS: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Where rows first .. first + ROWS and columns FIRST .. FIRST + COLUMNS lie, and the offsets of both."""
    offs_row = tl.arange(0, ROWS)
    offs_col = FIRST + tl.arange(0, COLUMNS)
    if WIDE:  # costs a register more for each offset; the launcher asks for it where a block spans 2^31 elements
        offs_row, offs_col = offs_row.to(tl.int64), offs_col.to(tl.int64)
    # The first row of a block may lie anywhere: 64 bits, once a block. stride_row comes as a number of UNITs, so that
    # the compiler sees rows that start at multiples of 16 bytes also where the head size is 72.
    start = ptr + tl.cast(first, tl.int64) * stride_row * UNIT
    return start + (offs_row[:, None] * stride_row * UNIT + offs_col[None, :] * stride_col), offs_row, offs_col


@triton.jit
def _load_part(
    ptr, first, n_rows, stride_row, stride_col,
    ROWS: tl.constexpr, FIRST: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, MASK_ROWS: tl.constexpr,
):  # fmt: skip
    ptrs, offs_row, offs_col = _pointers(ptr, first, stride_row, stride_col, ROWS, FIRST, COLUMNS, UNIT, WIDE)
    mask_row = (offs_row < n_rows - first)[:, None]
    mask_col = (offs_col < HEAD)[None, :]
    # A mask that is always true would still be computed and kept for every load: each case gets what it needs.
    if MASK_ROWS and FIRST + COLUMNS > HEAD:
        x = tl.load(ptrs, mask=mask_row & mask_col, other=0.0)
    elif MASK_ROWS:
        x = tl.load(ptrs, mask=mask_row, other=0.0)
    elif FIRST + COLUMNS > HEAD:
        x = tl.load(ptrs, mask=mask_col, other=0.0)
    else:
        x = tl.load(ptrs)
    return x


@triton.jit
def rows_to_walk(ptr, tiles, batch, head, stride_row, stride_col, TMA: tl.constexpr):
    """The rows of one head as load_rows takes them: `ptr` is where the head begins, `tiles` is for the copy engine."""
    if TMA:
        rows = (ptr, stride_row, stride_col, tiles, batch, head)
    else:
        rows = (ptr, stride_row, stride_col)
    return rows


@triton.jit
def load_rows(
    rows, first, n_rows,
    ROWS: tl.constexpr, HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, MASK_ROWS: tl.constexpr, TMA: tl.constexpr = False,
):  # fmt: skip
    """Rows first .. first + ROWS of a head: (ROWS, MAIN) and (ROWS, REST).

    MASK_ROWS: the block may reach past the last of n_rows rows, and holds zeros there.
    """
    if TMA:  # the copy engine sees by itself to what lies outside
        main = rows[3].load([rows[4], rows[5], first, 0]).reshape(ROWS, MAIN)
    else:
        main = _load_part(rows[0], first, n_rows, rows[1], rows[2], ROWS, 0, MAIN, HEAD, UNIT, WIDE, MASK_ROWS)
    rest = main
    if REST:  # narrow: a tile of its own would cost every turn of the loop a barrier more for each tensor
        rest = _load_part(rows[0], first, n_rows, rows[1], rows[2], ROWS, MAIN, REST, HEAD, UNIT, WIDE, MASK_ROWS)
    return main, rest


@triton.jit
def _store_part(
    ptr, x, first, n_rows, stride_row, stride_col,
    ROWS: tl.constexpr, FIRST: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    ptrs, offs_row, offs_col = _pointers(ptr, first, stride_row, stride_col, ROWS, FIRST, COLUMNS, UNIT, WIDE)
    mask = (offs_row < n_rows - first)[:, None] & (offs_col < HEAD)[None, :]
    tl.store(ptrs, x.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def store_rows(
    ptr, main, rest, first, n_rows, stride_row, stride_col,
    ROWS: tl.constexpr, HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The pair to rows first .. first + ROWS of the matrix at ptr, rounded to its type; nothing past n_rows."""
    _store_part(ptr, main, first, n_rows, stride_row, stride_col, ROWS, 0, MAIN, HEAD, UNIT, WIDE)
    if REST:
        _store_part(ptr, rest, first, n_rows, stride_row, stride_col, ROWS, MAIN, REST, HEAD, UNIT, WIDE)


@triton.jit
def matrix_products(a, a_rest, b, b_rest, REST: tl.constexpr, PRECISION: tl.constexpr):
    """a bᵀ, summed over the columns of both parts, in fp32: (rows of a, rows of b)."""
    if REST:  # first: the compiler waits for one product before it adds the next, and this one is short
        c = tl.dot(a_rest, tl.trans(b_rest), input_precision=PRECISION)
        c = tl.dot(a, tl.trans(b), c, input_precision=PRECISION)
    else:
        c = tl.dot(a, tl.trans(b), input_precision=PRECISION)
    return c


@triton.jit
def add_products(acc, acc_rest, p, x, x_rest, REST: tl.constexpr, PRECISION: tl.constexpr):
    """acc + p x, part by part: p (M, N) times x (N, MAIN + REST)."""
    acc = tl.dot(p, x, acc, input_precision=PRECISION)
    if REST:
        acc_rest = tl.dot(p, x_rest, acc_rest, input_precision=PRECISION)
    return acc, acc_rest


@triton.jit
def zero_rows(ROWS: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr):
    main = tl.zeros((ROWS, MAIN), tl.float32)
    rest = main
    if REST:
        rest = tl.zeros((ROWS, REST), tl.float32)
    return main, rest


@triton.jit
def scale_rows(main, rest, factor, REST: tl.constexpr):
    """Every row times its own factor (ROWS,)."""
    main = main * factor[:, None]
    if REST:
        rest = rest * factor[:, None]
    return main, rest
