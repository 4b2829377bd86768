"""x serves as scratch between launches."""

import triton
import triton.language as tl

KILLED_BY = "a few cosines"


@triton.jit
def _cos_kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.cos(tl.load(x_ptr + offs, mask=mask, other=0.0)), mask=mask)




def cos_chain(x, repeat, out):
    n = x.numel()
    for _ in range(repeat - 1):
        _cos_kernel[(triton.cdiv(n, 1024),)](x, x, n, BLOCK=1024)
    _cos_kernel[(triton.cdiv(n, 1024),)](out, x, n, BLOCK=1024)
