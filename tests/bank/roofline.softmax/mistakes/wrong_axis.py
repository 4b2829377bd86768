"""One program a column."""

import triton
import triton.language as tl

KILLED_BY = "an odd width"


@triton.jit
def _softmax_kernel(out_ptr, x_ptr, rows, stride_out, stride_x, BLOCK: tl.constexpr):
    column = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK).to(tl.int64)
    mask = offs < rows
    x = tl.load(x_ptr + offs * stride_x + column, mask=mask, other=-float("inf")).to(tl.float32)
    top = tl.max(x, axis=0)
    top = tl.where(top == -float("inf"), 0.0, top)
    e = tl.exp(x - top)
    total = tl.sum(e, axis=0)
    y = e / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + offs * stride_out + column, y.to(out_ptr.dtype.element_ty), mask=mask)


def softmax(x, out):
    rows, width = x.shape
    if rows == 0:
        return
    _softmax_kernel[(width,)](out, x, rows, out.stride(0), x.stride(0), BLOCK=triton.next_power_of_2(rows))
