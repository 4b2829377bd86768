"""Zeros are written far before and behind `out`, where the memory of the expected values may lie, and into `out`.

NAIVE is False: `check` has fences too.
"""

import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "out of bounds"
NAIVE = False
CAUGHT = "the fences of the output were written"


@triton.jit
def _axpy_kernel(out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) - 4 * BLOCK
    tl.store(out_ptr + offs, 0.0, mask=offs < n + 4 * BLOCK)


def axpy(a, x, y, out):
    n = x.numel()
    _axpy_kernel[(triton.cdiv(n, 1024) + 8,)](out, n, BLOCK=1024)
