"""Each argument is brought into one turn by a subtraction in fp32."""

import triton
import triton.language as tl

KILLED_BY = "large arguments"


@triton.jit
def _chain_kernel(out_ptr, x_ptr, n, REPEAT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    value = tl.load(x_ptr + offs, mask=mask, other=0.0)
    for _ in range(REPEAT):
        turns = tl.floor(value / 6.2831853 + 0.5)
        value = tl.cos(value - turns * 6.2831853)
    tl.store(out_ptr + offs, value, mask=mask)


def cos_chain(x, repeat, out):
    n = x.numel()
    _chain_kernel[(triton.cdiv(n, 256),)](out, x, n, REPEAT=repeat, BLOCK=256)
