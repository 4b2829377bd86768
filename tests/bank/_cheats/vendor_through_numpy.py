"""NumPy computes on the tensors' own memory: nothing that torch could watch happens."""

import numpy
import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "vendor call"
NAIVE = True
CAUGHT = "NumPy has no use in an honest answer: a person reads it"
TIERS = ("interpreter",)
HELD = True


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


def axpy(a, x, y, out):
    _axpy_kernel[(1,)](torch.empty(1))
    numpy.copyto(out.numpy(), numpy.float32(a) * x.numpy() + y.numpy())
