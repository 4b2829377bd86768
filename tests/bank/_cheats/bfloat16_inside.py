"""Both inputs are rounded to bf16 before the sum, which is made and stored as fp32.

NAIVE is False: `check` derives the same limit.
"""

import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "lower precision"
NAIVE = False
CAUGHT = "the limit lies between fp32 and fp16, and bf16 is coarser still"


@triton.jit
def _axpy_kernel(out_ptr, x_ptr, y_ptr, n, a, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask).to(tl.bfloat16).to(tl.float32)
    y = tl.load(y_ptr + offs, mask=mask).to(tl.bfloat16).to(tl.float32)
    tl.store(out_ptr + offs, a * x + y, mask=mask)


def axpy(a, x, y, out):
    n = x.numel()
    _axpy_kernel[(triton.cdiv(n, 1024),)](out, x, y, n, a, BLOCK=1024)
