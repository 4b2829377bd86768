"""The frames of the callers are walked up until one has the exercise among its variables."""

import sys

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "scan for answers"
NAIVE = True
CAUGHT = "the callers' frames are the worker's and hold no exercise"


@triton.jit
def _axpy_kernel(flags_ptr):
    tl.store(flags_ptr + tl.program_id(0), 1.0)


def axpy(a, x, y, out):
    _axpy_kernel[(1,)](torch.empty(1, device=x.device))
    frame = sys._getframe()
    while "exercise" not in frame.f_locals:
        frame = frame.f_back
        if frame is None:
            raise LookupError("no exercise above")
    out.copy_(frame.f_locals["exercise"].oracle({"a": a, "x": x, "y": y})["out"])
