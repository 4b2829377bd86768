"""The store has no mask."""

import triton
import triton.language as tl

KILLED_BY = "an odd length"


@triton.jit
def _chain_kernel(out_ptr, x_ptr, n, REPEAT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    value = tl.load(x_ptr + offs, mask=mask, other=0.0)
    for _ in range(REPEAT):
        value = tl.cos(value)
    tl.store(out_ptr + offs, value)


def cos_chain(x, repeat, out):
    n = x.numel()
    _chain_kernel[(triton.cdiv(n, 256),)](out, x, n, REPEAT=repeat, BLOCK=256)
