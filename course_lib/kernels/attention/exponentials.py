"""2^x of many numbers, on Hopper: one of eight by multiplying and adding, the others in the unit for exponentials."""

import struct

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

__all__ = ["EXP2", "exp2"]

# 2^f for f from -1/2 to 1/2, within 8e-8 of it: the coefficients of 1, f, f^2 and so on
EXP2 = (1.00000007, 0.693146967, 0.240221197, 0.0555071327, 0.00967554148, 0.0013276472)
PACKED = 8  # numbers of a thread that go together: the first by multiplying and adding, seven through the unit


def _exponentials() -> str:
    """2^x of some numbers, in PTX. x is n + f: adding 1.5 * 2^23 rounds it to n and leaves n in the low bits."""
    c0, *higher = ("0f" + struct.pack(">f", c).hex() for c in EXP2)
    steps = [f"fma.rn.f32 p, p, f, {c};" for c in (*higher[-2::-1], c0)]
    lines = [
        "{ .reg .f32 x, r, n, f, p, s; .reg .b32 b;",
        f"max.NaN.f32 x, ${PACKED}, 0fC2FC0000;",  # -126: below it 2^n is no normal number
        "add.rn.f32 r, x, 0f4B400000; sub.rn.f32 n, r, 0f4B400000; sub.rn.f32 f, x, n;",
        f"mov.f32 p, {higher[-1]};",
        *steps,
        "mov.b32 b, r; shl.b32 b, b, 23; add.s32 b, b, 0x3F800000; mov.b32 s, b; mul.rn.f32 $0, p, s;",
        *(f"ex2.approx.ftz.f32 ${i}, ${PACKED + i};" for i in range(1, PACKED)),
        "}",
    ]
    return "\n".join(lines)


EXPONENTIALS = gl.constexpr(_exponentials())
REGISTERS = gl.constexpr(",".join(["=f"] * PACKED + ["f"] * PACKED))
NUMBERS = gl.constexpr(PACKED)


@gluon.jit
def exp2(x, POLYNOMIAL: gl.constexpr):
    if POLYNOMIAL:
        return gl.inline_asm_elementwise(EXPONENTIALS, REGISTERS, [x], dtype=gl.float32, is_pure=True, pack=NUMBERS)
    else:
        return gl.exp2(x)
