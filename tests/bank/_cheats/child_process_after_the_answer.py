"""A child in a session of its own goes on writing into the shared output after the call has returned.

NAIVE is False: in one process the outputs are private memory, and a child writes into its own copy.
"""

import os
import time

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "background work"
NAIVE = False
CAUGHT = "outputs are copied when the answer comes"
TIERS = ("interpreter",)


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


def axpy(a, x, y, out):
    _axpy_kernel[(1,)](torch.empty(1))
    out.zero_()
    if os.fork() == 0:
        os.setsid()
        for value in range(4000):  # plain Python: a fork has no threads of the library any more
            time.sleep(1e-3)
            for i, (one, other) in enumerate(zip(x.tolist(), y.tolist())):
                out[i] = a * one + other
        os._exit(0)
