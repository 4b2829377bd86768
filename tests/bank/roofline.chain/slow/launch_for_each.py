"""One launch for every cosine: right, and `repeat` times the bytes."""

import triton
import triton.language as tl


@triton.jit
def _cos_kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.cos(tl.load(x_ptr + offs, mask=mask, other=0.0)), mask=mask)




def cos_chain(x, repeat, out):
    n = x.numel()
    source = x
    for _ in range(repeat):
        _cos_kernel[(triton.cdiv(n, 4096),)](out, source, n, BLOCK=4096)
        source = out
