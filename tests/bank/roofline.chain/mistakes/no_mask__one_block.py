"""One block that holds everything, and no mask."""

import triton
import triton.language as tl

KILLED_BY = "an odd length"


@triton.jit
def _chain_kernel(out_ptr, x_ptr, n, REPEAT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + offs)
    for _ in range(REPEAT):
        value = tl.cos(value)
    tl.store(out_ptr + offs, value)


def cos_chain(x, repeat, out):
    n = x.numel()
    if n:
        _chain_kernel[(1,)](out, x, n, REPEAT=repeat, BLOCK=triton.next_power_of_2(n))
