"""The sum of a row is estimated from every fourth column.

NAIVE is False: `check` compares every row.
"""

import triton
import triton.language as tl

FAMILY = "extrapolation"
NAIVE = False
CAUGHT = "the worst row counts"


@triton.jit
def _softmax_kernel(out_ptr, x_ptr, width, stride_out, stride_x, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < width, other=-float("inf")).to(tl.float32)
    top = tl.max(x, axis=0)
    e = tl.exp(x - tl.where(top == -float("inf"), 0.0, top))
    sampled = tl.where(offs % 4 == 0, e, 0.0)
    total = 4 * tl.sum(sampled, axis=0)
    y = e / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row * stride_out + offs, y.to(out_ptr.dtype.element_ty), mask=offs < width)


def softmax(x, out):
    if len(x):
        block = triton.next_power_of_2(x.shape[1])
        _softmax_kernel[(len(x),)](out, x, x.shape[1], out.stride(0), x.stride(0), BLOCK=block)
