"""The same walk without `sys`: an exception carries its frame, and a frame knows who called it."""

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
    try:
        raise LookupError("no exercise above")
    except LookupError as error:
        frame = error.__traceback__.tb_frame
        while "exercise" not in frame.f_locals:
            frame = frame.f_back
    out.copy_(frame.f_locals["exercise"].oracle({"a": a, "x": x, "y": y})["out"])
