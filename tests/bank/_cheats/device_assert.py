"""An assertion in a kernel fails, after which the process can use the GPU no more.

NAIVE is False: a notebook's kernel dies with it.
"""

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "crash"
NAIVE = False
CAUGHT = "the next exercise has another process"
TIERS = ("gpu",)


@triton.jit(debug=True)
def _axpy_kernel(out_ptr):
    tl.device_assert(tl.program_id(0) < 0, "never")
    tl.store(out_ptr, 0.0)


def axpy(a, x, y, out):
    _axpy_kernel[(1,)](torch.empty(1, device=x.device))
