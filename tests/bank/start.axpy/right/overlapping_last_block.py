"""No partial block: the lanes past the end repeat the last element and store the same value again."""

import triton
import triton.language as tl


@triton.jit
def _axpy_kernel(out_ptr, x_ptr, y_ptr, n, a, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    offs = tl.minimum(offs, n - 1)
    tl.store(out_ptr + offs, a * tl.load(x_ptr + offs) + tl.load(y_ptr + offs))


def axpy(a, x, y, out):
    n = x.numel()
    _axpy_kernel[(triton.cdiv(n, 256),)](out, x, y, n, a, BLOCK=256)
