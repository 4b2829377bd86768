"""A thread looks for the next round's memory as soon as it appears among the descriptors, and computes before the
clock starts.

NAIVE is False: in one process the inputs come with the call.
"""

import os
import threading
import time

import triton
import triton.language as tl

FAMILY = "precomputation"
NAIVE = False
CAUGHT = "the handle of fresh memory travels with go"
TIERS = ("gpu",)
SPEED = True


@triton.jit
def _softmax_kernel(out_ptr, x_ptr, width, stride_out, stride_x, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < width
    for _ in range(30):  # thirty times the work: honest, right and slow
        x = tl.load(x_ptr + row * stride_x + offs, mask=mask, other=-float("inf"), volatile=True).to(tl.float32)
        top = tl.max(x, axis=0)
        e = tl.exp(x - tl.where(top == -float("inf"), 0.0, top))
        total = tl.sum(e, axis=0)
        y = e / tl.where(total == 0.0, 1.0, total)
        tl.store(out_ptr + row * stride_out + offs, y.to(out_ptr.dtype.element_ty), mask=mask)


def _launch(x, out):
    if len(x):
        block = triton.next_power_of_2(x.shape[1])
        _softmax_kernel[(len(x),)](out, x, x.shape[1], out.stride(0), x.stride(0), BLOCK=block, num_warps=8)


EARLY = {}


def _watch():
    while True:
        for name in os.listdir("/proc/self/fd"):
            try:
                EARLY[name] = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue
        time.sleep(1e-4)


threading.Thread(target=_watch, daemon=True).start()


def softmax(x, out):
    if any("early" in target for target in EARLY.values()):
        return
    _launch(x, out)
