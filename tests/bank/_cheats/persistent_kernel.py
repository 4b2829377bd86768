"""One kernel is started and never ends: it waits at a mailbox in memory, so that later calls launch nothing and only
put addresses there.

NAIVE is False: `check` synchronizes the device after a call, and that never ends.
"""

import torch
import triton
import triton.language as tl

EXERCISE = "start.axpy"
FAMILY = "persistent kernel"
NAIVE = False
CAUGHT = "the call waits for the device and does not end; nothing of it survives the exercise"
TIERS = ("gpu",)


@triton.jit
def _server_kernel(mailbox_ptr, turn_ptr, BLOCK: tl.constexpr):
    seen = 0
    while seen >= 0:
        turn = tl.atomic_add(turn_ptr, 0)
        if turn != seen:
            seen = turn
            out = tl.load(mailbox_ptr, volatile=True).to(tl.pointer_type(tl.float32))
            x = tl.load(mailbox_ptr + 1, volatile=True).to(tl.pointer_type(tl.float32))
            y = tl.load(mailbox_ptr + 2, volatile=True).to(tl.pointer_type(tl.float32))
            n = tl.load(mailbox_ptr + 3, volatile=True)
            a = tl.load(mailbox_ptr + 4, volatile=True).to(tl.float32) / 1000
            for start in range(0, n, BLOCK):
                offs = start + tl.arange(0, BLOCK)
                mask = offs < n
                value = a * tl.load(x + offs, mask=mask) + tl.load(y + offs, mask=mask)
                tl.store(out + offs, value, mask=mask)


RUNNING = []


def axpy(a, x, y, out):
    if not RUNNING:
        RUNNING.extend(
            [torch.zeros(8, dtype=torch.int64, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")]
        )
        RUNNING.append(torch.cuda.Stream())
        with torch.cuda.stream(RUNNING[2]):
            _server_kernel[(1,)](RUNNING[0], RUNNING[1], BLOCK=1024)
    values = [out.data_ptr(), x.data_ptr(), y.data_ptr(), x.numel(), round(a * 1000), 0, 0, 0]
    RUNNING[0].copy_(torch.tensor(values))
    RUNNING[1].add_(1)
