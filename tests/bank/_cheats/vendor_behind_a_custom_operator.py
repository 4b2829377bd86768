"""An operator of the student's own name is registered, and the library does its work inside."""

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "vendor call"
NAIVE = True
CAUGHT = "the watched run saw what runs inside"
HELD = True


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


@torch.library.custom_op("lesson::axpy", mutates_args=("out",))
def _operator(a: float, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    torch.add(y, x, alpha=a, out=out)


def axpy(a, x, y, out):
    _axpy_kernel[(1,)](torch.empty(1, device=x.device))
    _operator(a, x, y, out)
