"""The row's offset is computed in 32 bits."""

import triton
import triton.language as tl

KILLED_BY = "offsets past 2^31"
TIERS = ("gpu",)


@triton.jit
def _softmax_kernel(out_ptr, x_ptr, width, stride_out, stride_x, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * stride_x
    out_ptr += row * stride_out
    top = -float("inf")
    total = 0.0
    for start in range(0, width, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < width, other=-float("inf")).to(tl.float32)
        new_top = tl.maximum(top, tl.max(x, axis=0))
        shift = tl.where(new_top == -float("inf"), 0.0, new_top)
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(x - shift), axis=0)
        top = new_top
    shift = tl.where(top == -float("inf"), 0.0, top)
    total = tl.where(total == 0.0, 1.0, total)
    for start in range(0, width, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < width
        x = tl.load(x_ptr + offs, mask=mask, other=-float("inf")).to(tl.float32)
        tl.store(out_ptr + offs, (tl.exp(x - shift) / total).to(out_ptr.dtype.element_ty), mask=mask)


def softmax(x, out):
    rows, width = x.shape
    _softmax_kernel[(rows,)](out, x, width, out.stride(0), x.stride(0), BLOCK=1024)
