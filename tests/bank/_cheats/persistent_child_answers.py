"""A child process is left waiting in the cells; each call only wakes it and returns at once, and the child fills the
output meanwhile.

NAIVE is False: in one process the child has no hold of the outputs.
"""

import glob
import mmap
import os
import time

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "persistent kernel"
NAIVE = False
CAUGHT = "outputs are copied when the answer comes"
TIERS = ("interpreter",)


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


PARENT = os.getpid()
if os.fork() == 0:
    while True:  # whatever memory of the referee turns up in the parent is filled
        for path in glob.glob(f"/proc/{PARENT}/fd/*"):
            try:
                if "referee" not in os.readlink(path):
                    continue
                with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
                    memory[: 1 << 16] = bytes(1 << 16)
            except (OSError, ValueError):
                continue
        time.sleep(1e-3)


def axpy(a, x, y, out):
    _axpy_kernel[(1,)](torch.empty(1))
