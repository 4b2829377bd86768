"""`out` becomes a view of y: no copy, no work.

NAIVE is False: `check` looks at the values too.
"""

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "output not computed"
NAIVE = False
CAUGHT = "only the bytes in the shared memory count"


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


def axpy(a, x, y, out):
    _axpy_kernel[(1,)](torch.empty(1, device=x.device))
    out.set_(y)
