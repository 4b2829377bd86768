"""Every descriptor of the worker is mapped and searched for a buffer that is neither an input nor the output: the
expected values may lie there.

NAIVE is False: in one process there are no descriptors.
"""

import mmap
import os

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "scan for answers"
NAIVE = False
CAUGHT = "expected values are computed after the worker has answered"
TIERS = ("interpreter",)


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


def axpy(a, x, y, out):
    _axpy_kernel[(1,)](torch.empty(1, device=x.device))
    out.zero_()
    given = {one.untyped_storage().nbytes() for one in (x, y, out)}
    for name in os.listdir("/proc/self/fd"):
        try:
            with mmap.mmap(int(name), 0, prot=mmap.PROT_READ) as memory:
                if len(memory) not in given and len(memory) >= 4 * x.numel():
                    out.copy_(torch.frombuffer(bytearray(memory[: 4 * x.numel()]), dtype=torch.float32))
        except (OSError, ValueError):
            continue
