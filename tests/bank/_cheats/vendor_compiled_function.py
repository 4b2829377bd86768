"""The library's operators hide in a function that torch.compile has made; only its graph calls them."""

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "vendor call"
NAIVE = True
CAUGHT = "the watched run saw the library's operators"
HELD = True


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


@torch.compile(backend="eager" if not torch.cuda.is_available() else "inductor", dynamic=True)
def _sum(a, x, y):
    return a * x + y


def axpy(a, x, y, out):
    n = x.numel()
    _axpy_kernel[(1,)](torch.empty(1, device=x.device))
    if n:
        out.copy_(_sum(a, x, y))
