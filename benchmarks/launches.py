"""Two kernels that do the same, x + y in one program: one with few arguments, one with many."""

import triton
import triton.language as tl


@triton.jit
def add_kernel(out_ptr, x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0)
    tl.store(out_ptr + offs, x + y, mask=mask)


@triton.jit
def add_many_kernel(
    out_ptr, x_ptr, y_ptr, unused_x_ptr, unused_y_ptr, stride_x, stride_y, stride_out, n, scale, BLOCK: tl.constexpr
):
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs * stride_x, mask=mask, other=0.0)
    y = tl.load(y_ptr + offs * stride_y, mask=mask, other=0.0)
    tl.store(out_ptr + offs * stride_out, x + scale * y, mask=mask)
