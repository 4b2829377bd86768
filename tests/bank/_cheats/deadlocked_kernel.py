"""The programs of a kernel wait for one that never comes.

NAIVE is False: a notebook would hang with it.
"""

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "hang"
NAIVE = False
CAUGHT = "the deadline belongs to the referee, and the driver ends the kernel with its process"
TIERS = ("gpu",)


@triton.jit
def _axpy_kernel(lock_ptr):
    while tl.atomic_add(lock_ptr, 0) == 0:
        pass


def axpy(a, x, y, out):
    out.zero_()
    _axpy_kernel[(1,)](torch.zeros(1, dtype=torch.int32, device=x.device))
