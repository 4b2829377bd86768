"""In a round of the clock `done` is written before the kernel is even launched.

NAIVE is False: in one process there is no channel.
"""

import json
import os
import stat
import struct

import triton
import triton.language as tl

FAMILY = "done before the work"
NAIVE = False
CAUGHT = "the clock stops when the parent has read elements of every output"
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


def _say(message):
    """Write a message on every descriptor that may be the referee's."""
    data = json.dumps(message).encode()
    for descriptor in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, struct.pack("!I", len(data)) + data)
        except OSError:
            continue


CALLS = []


def softmax(x, out):
    CALLS.append(1)
    if x.numel() > 2**20:
        _say({"done": len(CALLS)})
    _launch(x, out)
