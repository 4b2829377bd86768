"""The rows of one head, as two blocks of columns (columns.py says why): what kernels load, store and multiply.

Every block of rows below is a pair (main, rest): (ROWS, MAIN) and (ROWS, REST). Where REST = 0 nobody reads `rest`.
Where the copy engine (TMA) reaches a tensor, it fetches the main block; a launcher asks for that with `tiles`.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from course_lib.kernels.columns import split
from course_lib.kernels.descriptors import make_context_current
from course_lib.kernels.hardware import copy_engine

__all__ = [
    "LOG2_E",
    "add_products",
    "aligned",
    "load_rows",
    "matrix_products",
    "precision",
    "rows_to_walk",
    "scale_rows",
    "spans",
    "store_rows",
    "tiles",
    "zero_rows",
]

LOG2_E = 1.4426950408889634


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
    ptrs = start + (offs_row[:, None] * stride_row * UNIT + offs_col[None, :] * stride_col)  # (ROWS, COLUMNS)
    return ptrs, offs_row, offs_col


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
def rows_to_walk(ptr, tiles, batch, head, stride, TMA: tl.constexpr):
    """The rows of one head as load_rows takes them: `ptr` is where the head begins, `tiles` is for the copy engine."""
    if TMA:
        rows = (ptr, stride[2], stride[3], tiles, batch, head)
    else:
        rows = (ptr, stride[2], stride[3])
    return rows


@triton.jit
def load_rows(
    rows, first, n_rows,
    ROWS: tl.constexpr, HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, MASK_ROWS: tl.constexpr, TMA: tl.constexpr = False,
    CUT: tl.constexpr = False,
):  # fmt: skip
    """Rows first .. first + ROWS of a head: (ROWS, MAIN) and (ROWS, REST).

    MASK_ROWS: the block may reach past the last of n_rows rows, and holds zeros there. The copy engine makes zeros of
    what lies behind the tensor. CUT: the tensor may have more than n_rows rows, and the copy engine fetches them too.
    """
    if TMA:
        main = rows[3].load([rows[4], rows[5], first, 0]).reshape(ROWS, MAIN)  # (1, 1, ROWS, MAIN) as fetched
        if CUT:
            main = tl.where((tl.arange(0, ROWS) < n_rows - first)[:, None], main, 0.0)
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
    ptr, main, rest, first, n_rows, stride,
    ROWS: tl.constexpr, HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The pair to rows first .. first + ROWS of the matrix at ptr, rounded to its type; nothing past n_rows."""
    _store_part(ptr, main, first, n_rows, stride[2], stride[3], ROWS, 0, MAIN, HEAD, UNIT, WIDE)
    if REST:
        _store_part(ptr, rest, first, n_rows, stride[2], stride[3], ROWS, MAIN, REST, HEAD, UNIT, WIDE)


@triton.jit
def matrix_products(a, a_rest, b, b_rest, REST: tl.constexpr, PRECISION: tl.constexpr):
    """a bᵀ, summed over the columns of both blocks, in fp32: a (M, MAIN + REST), b (N, MAIN + REST) -> (M, N)."""
    if REST:  # first: the compiler waits for one product before it adds the next, and this one is short
        c = tl.dot(a_rest, tl.trans(b_rest), input_precision=PRECISION)  # (M, REST) (REST, N)
        c = tl.dot(a, tl.trans(b), c, input_precision=PRECISION)  # (M, MAIN) (MAIN, N)
    else:
        c = tl.dot(a, tl.trans(b), input_precision=PRECISION)
    return c


@triton.jit
def add_products(acc, acc_rest, p, x, x_rest, REST: tl.constexpr, PRECISION: tl.constexpr):
    """acc + p x, block by block: p (M, N), x (N, MAIN + REST) -> (M, MAIN + REST)."""
    acc = tl.dot(p, x, acc, input_precision=PRECISION)  # (M, N) (N, MAIN)
    if REST:
        acc_rest = tl.dot(p, x_rest, acc_rest, input_precision=PRECISION)  # (M, N) (N, REST)
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


def spans(rows: int, columns: int, *tensors: torch.Tensor) -> bool:
    """Does one block of some tensor reach over 2^31 elements, so that offsets inside it need 64 bits?"""
    return any(rows * x.stride(2) + columns * x.stride(3) >= 2**31 for x in tensors)


def precision(dtype: torch.dtype) -> str:
    """fp32 keeps all its bits; to 2-byte types it makes no difference."""
    return "ieee" if dtype == torch.float32 else "tf32"


def aligned(x: torch.Tensor) -> bool:
    """Could a copy engine fetch tiles of x? It wants rows of adjacent elements that start at multiples of 16 bytes."""
    steps = x.stride()[:-1]
    return (
        x.element_size() == 2
        and x.stride(-1) == 1
        and x.numel() > 0
        and all(step > 0 and step % 8 == 0 for step in steps)
        and x.data_ptr() % 16 == 0
    )


def tiles(rows: int, *tensors: torch.Tensor) -> tuple[TensorDescriptor | None, ...]:
    """For each tensor (B, H, N, D) what the copy engine has to know to fetch the main block of `rows` rows of one head.

    All None where it does not reach them. One thread asks for a whole tile, and what lies outside the tensor arrives as
    zeros. Other loads cost every thread addresses and masks: 28 registers of 134 in the forward pass at head size 64.
    """
    main, _ = split(tensors[0].shape[-1])
    if not all(x.is_cuda and copy_engine(x.device) and aligned(x) for x in tensors):
        return (None,) * len(tensors)
    make_context_current(tensors[0])
    return tuple(TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, main]) for x in tensors)
