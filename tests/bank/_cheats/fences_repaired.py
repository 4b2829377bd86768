"""The whole slab around `out` is found by its storage, filled with zeros, and the fences are then repaired with the
poison that lay there.

NAIVE is False: it hides traces and computes nothing.
"""

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "out of bounds"
NAIVE = False
CAUGHT = "the values are wrong, however whole the fences"


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


def axpy(a, x, y, out):
    _axpy_kernel[(1,)](torch.empty(1, device=x.device))
    slab = torch.empty(0, dtype=out.dtype, device=out.device).set_(out.untyped_storage())
    before = slab.clone()
    slab.zero_()
    slab.copy_(before)
    out.zero_()
