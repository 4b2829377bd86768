"""A kernel writes to an address that nobody has, after which the process can use the GPU no more.

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


@triton.jit
def _axpy_kernel(out_ptr):
    tl.store(out_ptr + (tl.program_id(0).to(tl.int64) + 1) * (1 << 44), 0.0)


def axpy(a, x, y, out):
    _axpy_kernel[(4,)](torch.empty(1, device=x.device))
