"""A block of the interpreter holds a NumPy array: the kernel takes it out of the block and lets NumPy do the sum.

Each program does its own share, so that both ablations break the answer as they should.
"""

import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "vendor call"
NAIVE = True
CAUGHT = "the compiler, which takes no NumPy"
TIERS = ("interpreter",)


@triton.jit
def _axpy_kernel(out_ptr, x_ptr, y_ptr, n, a, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0)
    y.handle.data += x.handle.data * a.handle.data.astype(x.handle.data.dtype)
    tl.store(out_ptr + offs, y, mask=mask)


def axpy(a, x, y, out):
    n = x.numel()
    _axpy_kernel[(triton.cdiv(n, 512),)](out, x, y, n, a, BLOCK=512)
