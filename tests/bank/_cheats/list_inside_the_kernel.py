"""The interpreter runs kernels as Python, so this one keeps its blocks in a list, which no compiler takes: the points
for a kernel are earned with code that runs on no GPU.
"""

import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "decoy kernel"
NAIVE = True
CAUGHT = "the compiler, run in the sandbox without a GPU"
TIERS = ("interpreter",)


@triton.jit
def _axpy_kernel(out_ptr, x_ptr, y_ptr, n, a, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    loaded = []
    for pointer in {"x": x_ptr, "y": y_ptr}.values():
        loaded.append(tl.load(pointer + offs, mask=offs < n, other=0.0))
    tl.store(out_ptr + offs, a * loaded[0] + loaded[1], mask=offs < n)


def axpy(a, x, y, out):
    n = x.numel()
    _axpy_kernel[(triton.cdiv(n, 256),)](out, x, y, n, a, BLOCK=256)
