"""Zeros at once, so that nothing is unwritten; the real answer comes from a thread a little later, while the judge is
still busy with other cases.
"""

import threading
import time

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "background work"
NAIVE = True
CAUGHT = "outputs are copied when the answer comes"
TIERS = ("interpreter",)


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


def _later(a, x, y, out):
    time.sleep(0.01)
    torch.add(y, x, alpha=a, out=out)


def axpy(a, x, y, out):
    _axpy_kernel[(1,)](torch.empty(1))
    out.zero_()
    threading.Thread(target=_later, args=(a, x, y, out), daemon=True).start()
