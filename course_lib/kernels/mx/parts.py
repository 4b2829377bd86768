"""What several kernels do with an exponent."""

import triton
import triton.language as tl

__all__ = ["scale_of"]


@triton.jit
def scale_of(e):
    """2^(e - 133) in fp32, made of bits; NaN for 255. Once a group, so a few instructions more cost nothing.

    Below e = 7 the scale is a subnormal number, one bit that has left the exponent and gone down the fraction. The
    usual `e << 23` knows no such numbers, and exp2 on a GPU makes zeros of them.
    """
    e = e.to(tl.int32)
    normal = (tl.maximum(e, 7) - 6) << 23
    subnormal = tl.full(e.shape, 1 << 16, tl.int32) << tl.minimum(e, 6)
    bits = tl.where(e > 6, normal, subnormal)
    return tl.where(e == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)
