"""The library is called with every dispatch mode and function mode switched off, so that no mode sees it."""

import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import _disable_current_modes

EXERCISE = "start.axpy"
FAMILY = "vendor call"
NAIVE = True
CAUGHT = "the profiler is no mode and sees the operator"
HELD = True


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


def axpy(a, x, y, out):
    _axpy_kernel[(1,)](torch.empty(1, device=x.device))
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        torch.add(y, x, alpha=a, out=out)
