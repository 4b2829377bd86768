"""A kernel that runs for minutes is left behind in the hope that the reference is timed beside it.

NAIVE is False: in one process it delays the submission as well.
"""

import torch
import triton
import triton.language as tl

FAMILY = "slower reference"
NAIVE = False
CAUGHT = "the reference is timed alone first, and nothing survives the exercise"
TIERS = ("gpu",)
SPEED = True


@triton.jit
def _softmax_kernel(out_ptr, x_ptr, width, stride_out, stride_x, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < width
    for _ in range(30):  # thirty times the work: honest, right and slow
        x = tl.load(x_ptr + row * stride_x + offs, mask=mask, other=-float("inf"), volatile=True).to(tl.float32)
        top = tl.max(x, axis=0)
        e = tl.exp(x - tl.where(top == -float("inf"), 0.0, top))
        total = tl.sum(e, axis=0)
        y = e / tl.where(total == 0.0, 1.0, total)
        tl.store(out_ptr + row * stride_out + offs, y.to(out_ptr.dtype.element_ty), mask=mask)


def _launch(x, out):
    if len(x):
        block = triton.next_power_of_2(x.shape[1])
        _softmax_kernel[(len(x),)](out, x, x.shape[1], out.stride(0), x.stride(0), BLOCK=block, num_warps=8)


@triton.jit
def _heater_kernel(x_ptr, steps):
    value = tl.load(x_ptr + tl.program_id(0))
    for _ in range(steps):
        value = value * 1.0000001 + 1e-9
    tl.store(x_ptr + tl.program_id(0), value)


STREAM = torch.cuda.Stream()


def softmax(x, out):
    _launch(x, out)
    with torch.cuda.stream(STREAM):
        _heater_kernel[(4096,)](torch.zeros(4096, device="cuda"), 2**30)
