"""The first dimension is taken for the number of elements."""

import triton
import triton.language as tl

KILLED_BY = "three dimensions"


@triton.jit
def _chain_kernel(out_ptr, x_ptr, n, REPEAT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    value = tl.load(x_ptr + offs, mask=mask, other=0.0)
    for _ in range(REPEAT):
        value = tl.cos(value)
    tl.store(out_ptr + offs, value, mask=mask)


def cos_chain(x, repeat, out):
    n = x.shape[0]
    _chain_kernel[(triton.cdiv(n, 64),)](out, x, n, REPEAT=repeat, BLOCK=64)
