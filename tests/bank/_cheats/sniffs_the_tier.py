"""In Triton's interpreter, where nobody can see what a GPU would do, NumPy answers; on a GPU there is no kernel at
all.
"""

import os

import numpy
import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "environment sniffing"
NAIVE = True
CAUGHT = "NumPy has no use in an honest answer: a person reads it"
TIERS = ("interpreter",)
HELD = True


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


def axpy(a, x, y, out):
    if os.environ.get("TRITON_INTERPRET") == "1":
        _axpy_kernel[(1,)](torch.empty(1))
        numpy.add(numpy.float32(a) * numpy.asarray(x), numpy.asarray(y), out=numpy.asarray(out))
