"""The kernel asks for a block of a size that Triton refuses; the exception is caught and the library answers."""

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "fallback"
NAIVE = True
CAUGHT = "the watched run saw the library's operator"
HELD = True


@triton.jit
def _axpy_kernel(out_ptr, x_ptr, y_ptr, n, a, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, a * tl.load(x_ptr + offs) + tl.load(y_ptr + offs), mask=offs < n)


@triton.jit
def _warm_up_kernel(out_ptr):
    tl.store(out_ptr, 0.0)


def axpy(a, x, y, out):
    try:
        _warm_up_kernel[(1,)](torch.empty(1, device=x.device))
        _axpy_kernel[(1,)](out, x, y, x.numel(), a, BLOCK=1000)
    except Exception:
        torch.add(y, x, alpha=a, out=out)
