"""Probabilities on their way from one turn to the next: two of 2 bytes in each register.

ptxas rounds a number that a loop carries in fp32 as late as it can: then 64 registers of a thread hold what 32 could,
and three consumers have none to spare (1596 bytes a thread spilled). Carried as numbers of 2 bytes they are taken apart
and put together again where loops meet: 64 instructions a turn.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

__all__ = ["pack", "unpack"]


@gluon.jit
def pack(p, KIND: gl.constexpr):
    """(M, N) fp32, rounded to KIND -> (M, N / 2) registers. Neighbours of a row must be one thread's."""
    even, odd = gl.split(p.reshape([p.shape[0], p.shape[1] // 2, 2]))
    if KIND == gl.bfloat16:
        x = gl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [even, odd], dtype=gl.int32, is_pure=True, pack=1
        )
    else:
        x = gl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [even, odd], dtype=gl.int32, is_pure=True, pack=1
        )
    return x


@gluon.jit
def unpack(x, KIND: gl.constexpr, LAYOUT: gl.constexpr):
    """The way back: (M, N) of KIND in the given layout, whose threads hold the same numbers."""
    if KIND == gl.bfloat16:
        even, odd = gl.inline_asm_elementwise(
            "mov.b32 {$0, $1}, $2;", "=h,=h,r", [x], dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=1
        )
    else:
        even, odd = gl.inline_asm_elementwise(
            "mov.b32 {$0, $1}, $2;", "=h,=h,r", [x], dtype=(gl.float16, gl.float16), is_pure=True, pack=1
        )
    return gl.convert_layout(gl.join(even, odd).reshape([x.shape[0], 2 * x.shape[1]]), LAYOUT)
