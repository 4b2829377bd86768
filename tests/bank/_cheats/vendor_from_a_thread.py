"""The library is called in another thread, where a mode or a hook of the calling thread sees nothing."""

import threading

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "vendor call"
NAIVE = True
CAUGHT = "the watched run covers all threads"
HELD = True


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


def axpy(a, x, y, out):
    _axpy_kernel[(1,)](torch.empty(1, device=x.device))
    work = threading.Thread(target=lambda: torch.add(y, x, alpha=a, out=out))
    work.start()
    work.join()
