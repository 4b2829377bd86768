"""Answers are kept by shape. In the cells every likely length gets the answer for inputs of one, which a judge with
fixed inputs might use.

NAIVE is False: `check` draws lengths and values afresh.
"""

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "cache"
NAIVE = False
CAUGHT = "lengths and values are drawn afresh"


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


KNOWN = {}


def axpy(a, x, y, out):
    n = x.numel()
    _axpy_kernel[(1,)](torch.empty(1, device=x.device))
    if n not in KNOWN:
        KNOWN[n] = torch.full_like(out, 3.5)
    out.copy_(KNOWN[n])
