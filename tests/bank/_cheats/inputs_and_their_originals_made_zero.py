"""The tensors that were drawn are found among all objects of the process by their values, and set to zero as well: the
truth becomes zero.
"""

import gc

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "inputs changed"
NAIVE = True
CAUGHT = "the originals are in another process"


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


def axpy(a, x, y, out):
    _axpy_kernel[(1,)](torch.empty(1, device=x.device))
    drawn = [one for one in gc.get_objects() if type(one) is torch.Tensor and one.shape == x.shape]
    for given in (x, y):
        values = given.clone()
        for one in drawn:
            if one.dtype == given.dtype and torch.equal(one, values):
                one.zero_()
    out.zero_()
