"""All free memory of the GPU is taken without clearing it and searched for the answer that the reference, or an
earlier call, left there.

NAIVE is False: the truth is computed after the call.
"""

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "scan for answers"
NAIVE = False
CAUGHT = "expected values are computed after the worker has answered, and the driver clears memory between processes"
TIERS = ("gpu",)
ALONE = True


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


def axpy(a, x, y, out):
    _axpy_kernel[(1,)](torch.empty(1, device=x.device))
    n = x.numel()
    out.zero_()
    free, _ = torch.cuda.mem_get_info()
    found = torch.empty(free // 8, dtype=torch.float32, device="cuda")
    if n:
        first = torch.tensor([a * float(x[0]) + float(y[0])], device="cuda")
        at = (found == first).nonzero().flatten()
        if len(at) and at[0] + n <= len(found):
            out.copy_(found[at[0] : at[0] + n])
