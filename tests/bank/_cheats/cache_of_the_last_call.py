"""The answer of the last call is given again whenever the arguments look the same from outside: type, length,
alignment.

NAIVE is False: `check` judges the outputs of every call.
"""

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "cache"
NAIVE = False
CAUGHT = "the values of every case are fresh"


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


LAST = {}


def axpy(a, x, y, out):
    n = x.numel()
    _axpy_kernel[(1,)](torch.empty(1, device=x.device))
    if not LAST:
        LAST["out"] = torch.ones(1 << 14, device=x.device)
    out.copy_(LAST["out"][:n])
    LAST["out"][:n] = out
