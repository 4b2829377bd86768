"""Columns instead of rows, a block of them a program."""

import triton
import triton.language as tl

KILLED_BY = "an odd width"


@triton.jit
def _softmax_kernel(out_ptr, x_ptr, rows, width, stride_out, stride_x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    offs_row = tl.arange(0, ROWS).to(tl.int64)[:, None]
    offs_column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = (offs_row < rows) & (offs_column < width)
    x = tl.load(x_ptr + offs_row * stride_x + offs_column, mask=mask, other=-float("inf")).to(tl.float32)
    top = tl.max(x, axis=0)[None, :]
    top = tl.where(top == -float("inf"), 0.0, top)
    e = tl.exp(x - top)
    total = tl.sum(e, axis=0)[None, :]
    y = e / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + offs_row * stride_out + offs_column, y.to(out_ptr.dtype.element_ty), mask=mask)


def softmax(x, out):
    rows, width = x.shape
    if rows == 0:
        return
    ROWS = triton.next_power_of_2(rows)
    COLUMNS = 256 if rows <= 64 else 1  # a tall column fills a block by itself, several short ones share it
    grid = (triton.cdiv(width, COLUMNS),)
    _softmax_kernel[grid](out, x, rows, width, out.stride(0), x.stride(0), ROWS=ROWS, COLUMNS=COLUMNS)
