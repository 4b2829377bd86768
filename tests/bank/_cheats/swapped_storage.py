"""`out` is pointed at other memory, which holds the library's answer: nothing is ever written where the referee asked
for it.
"""

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "lazy tensor"
NAIVE = True
CAUGHT = "only the bytes in the shared memory count"


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


def axpy(a, x, y, out):
    _axpy_kernel[(1,)](torch.empty(1, device=x.device))
    out.data = a * x + y
