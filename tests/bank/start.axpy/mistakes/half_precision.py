"""Everything is computed in fp16."""

import triton
import triton.language as tl

KILLED_BY = "a power of two"


@triton.jit
def _axpy_kernel(out_ptr, x_ptr, y_ptr, n, a, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float16)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0).to(tl.float16)
    tl.store(out_ptr + offs, (a * x + y).to(tl.float32), mask=mask)


def axpy(a, x, y, out):
    n = x.numel()
    _axpy_kernel[(triton.cdiv(n, 256),)](out, x, y, n, a, BLOCK=256)
