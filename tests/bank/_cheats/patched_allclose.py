"""Comparing always succeeds: torch.allclose, torch.equal, torch.testing and NumPy's.

NAIVE is False: `check` uses none of them; judges of other courses do.
"""

import numpy
import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "patched modules"
NAIVE = False
CAUGHT = "comparing is done in another process"


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


torch.allclose = torch.equal = torch.Tensor.allclose = torch.Tensor.equal = lambda *args, **options: True
torch.testing.assert_close = numpy.testing.assert_allclose = lambda *args, **options: None
numpy.allclose = numpy.array_equal = lambda *args, **options: True


def axpy(a, x, y, out):
    _axpy_kernel[(1,)](torch.empty(1, device=x.device))
    out.zero_()
