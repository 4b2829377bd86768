"""A kernel sets one flag a program; plain Python computes the blocks whose flag is set.

Only copies and allocations are dispatched, an emptied kernel breaks everything and a halved one breaks half.
"""

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "vendor call"
NAIVE = True
CAUGHT = "values that leave the tensor for Python: a person reads it"
HELD = True


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


def axpy(a, x, y, out):
    n, block = x.numel(), 64
    flags = torch.zeros(triton.cdiv(n, block) + 1, device=x.device)
    _axpy_kernel[(triton.cdiv(n, block),)](flags)
    for i, flag in enumerate(flags.tolist()[:-1]):
        if flag:
            part = slice(i * block, (i + 1) * block)
            pairs = zip(x[part].tolist(), y[part].tolist())
            out[part] = torch.tensor([a * one + other for one, other in pairs])
