"""Inputs are rounded in place to few bits, so that the truth, computed from them, is met in low precision.

NAIVE is False: `check` keeps its own copy.
"""

import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "inputs changed"
NAIVE = False
CAUGHT = "inputs are compared with what was drawn"


@triton.jit
def _axpy_kernel(out_ptr, x_ptr, y_ptr, n, a, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask).to(tl.float16)
    y = tl.load(y_ptr + offs, mask=mask).to(tl.float16)
    tl.store(x_ptr + offs, x.to(tl.float32), mask=mask)
    tl.store(y_ptr + offs, y.to(tl.float32), mask=mask)
    tl.store(out_ptr + offs, a * x.to(tl.float32) + y.to(tl.float32), mask=mask)


def axpy(a, x, y, out):
    n = x.numel()
    _axpy_kernel[(triton.cdiv(n, 512),)](out, x, y, n, a, BLOCK=512)
