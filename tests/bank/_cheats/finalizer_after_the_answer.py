"""The work is done by a finalizer, when the caller drops the arguments."""

import weakref

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "background work"
NAIVE = True
CAUGHT = "outputs are copied when the answer comes, or hold what no kernel wrote"
HELD = True


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


class _Later:
    pass


def axpy(a, x, y, out):
    _axpy_kernel[(1,)](torch.empty(1, device=x.device))
    later = _Later()
    weakref.finalize(later, torch.add, y, x, alpha=a, out=out)
