"""The interpreter runs a kernel as Python: program 0 of this one calls the library for the whole array."""

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "vendor call"
NAIVE = True
CAUGHT = "the compiler, which takes no such call"
TIERS = ("interpreter",)

HANDED = []


def _everything():
    a, x, y, out = HANDED
    torch.add(y, x, alpha=a, out=out)


@triton.jit
def _axpy_kernel(out_ptr, n, BLOCK: tl.constexpr):
    if tl.program_id(0) == 0:
        _everything()


def axpy(a, x, y, out):
    HANDED[:] = [a, x, y, out]
    _axpy_kernel[(triton.cdiv(x.numel(), 512),)](out, x.numel(), BLOCK=512)
