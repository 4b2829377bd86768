"""The exponentials are stored as they are."""

import triton
import triton.language as tl

KILLED_BY = "an odd width"


@triton.jit
def _softmax_kernel(out_ptr, x_ptr, width, stride_out, stride_x, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < width
    x = tl.load(x_ptr + row * stride_x + offs, mask=mask, other=-float("inf")).to(tl.float32)
    top = tl.max(x, axis=0)
    top = tl.where(top == -float("inf"), 0.0, top)
    e = tl.exp(x - top)
    tl.store(out_ptr + row * stride_out + offs, e.to(out_ptr.dtype.element_ty), mask=mask)


def softmax(x, out):
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    _softmax_kernel[(rows,)](out, x, width, out.stride(0), x.stride(0), BLOCK=block, num_warps=8)
