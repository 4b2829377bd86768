"""Maximum, sum and division in a kernel each: three reads and one write."""

import torch
import triton
import triton.language as tl


@triton.jit
def _max_kernel(top_ptr, x_ptr, width, stride_x, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < width, other=-float("inf")).to(tl.float32)
    top = tl.max(x, axis=0)
    tl.store(top_ptr + row, tl.where(top == -float("inf"), 0.0, top))


@triton.jit
def _sum_kernel(total_ptr, top_ptr, x_ptr, width, stride_x, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < width, other=-float("inf")).to(tl.float32)
    total = tl.sum(tl.exp(x - tl.load(top_ptr + row)), axis=0)
    tl.store(total_ptr + row, tl.where(total == 0.0, 1.0, total))


@triton.jit
def _divide_kernel(out_ptr, total_ptr, top_ptr, x_ptr, width, stride_out, stride_x, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < width
    x = tl.load(x_ptr + row * stride_x + offs, mask=mask, other=-float("inf")).to(tl.float32)
    y = tl.exp(x - tl.load(top_ptr + row)) / tl.load(total_ptr + row)
    tl.store(out_ptr + row * stride_out + offs, y.to(out_ptr.dtype.element_ty), mask=mask)


def softmax(x, out):
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    top = torch.empty(rows, device=x.device)
    total = torch.empty(rows, device=x.device)
    _max_kernel[(rows,)](top, x, width, x.stride(0), BLOCK=block)
    _sum_kernel[(rows,)](total, top, x, width, x.stride(0), BLOCK=block)
    _divide_kernel[(rows,)](out, total, top, x, width, out.stride(0), x.stride(0), BLOCK=block)
