"""Matplotlib turns a tensor into an array of NumPy, and the sum of two arrays is NumPy's. The kernel copies it.

No name of NumPy stands in the text, and no operator of torch computes. The kernel is launched, emptied it leaves
nothing, and half of it leaves half.
"""

import torch
import triton
import triton.language as tl
from matplotlib.colors import Normalize

EXERCISE = "start.axpy"
FAMILY = "vendor call"
NAIVE = True
CAUGHT = "what turns a tensor into an array dispatches operators that are seen"
HELD = True
TIERS = ("interpreter",)


@triton.jit
def _axpy_kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def axpy(a, x, y, out):
    n = x.numel()
    same = Normalize(0, 1)
    done = torch.as_tensor(same(x) * a + same(y))
    _axpy_kernel[(triton.cdiv(n, 256),)](out, done, n, BLOCK=256)
