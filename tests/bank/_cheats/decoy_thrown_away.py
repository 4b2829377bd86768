"""An honest kernel runs on a scratch tensor, and its result is thrown away."""

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "decoy kernel"
NAIVE = True
CAUGHT = "an emptied kernel changes nothing"
HELD = True


@triton.jit
def _axpy_kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def axpy(a, x, y, out):
    n = x.numel()
    _axpy_kernel[(triton.cdiv(n, 512),)](torch.empty_like(x), x, n, BLOCK=512)
    torch.add(y, x, alpha=a, out=out)
