"""The library computes; then a kernel copies the answer into `out` block by block, so the answer needs the kernel."""

import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "decoy kernel"
NAIVE = True
CAUGHT = "the watched run saw the library's operators"
HELD = True


@triton.jit
def _copy_kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def axpy(a, x, y, out):
    n = x.numel()
    _copy_kernel[(triton.cdiv(n, 512),)](out, a * x + y, n, BLOCK=512)
