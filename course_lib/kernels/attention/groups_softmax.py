"""The softmax of the forward kernel with jobs for its warps: one block of scores, in the registers of one group.

wgmma leaves a row to the four threads of a quad: each holds columns 8 i + 2 j and 8 i + 2 j + 1, j its number among the
four. What a turn need not know of the other three is left for the end: each thread keeps the sum of its own columns,
and the four are added once a tile, which saves 4 shuffles and 4 additions a turn.

LAZY, as in FlashAttention-4 (Zadouri and others, 2026): any number may stand for the maximum as long as no probability
overflows. So it moves only for a score that is larger by more than SLACK, and o is scaled only in turns where it moved
for some row of the warp: for scores of one size, never after the first block. Masked blocks, which come first, move it
always.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from course_lib.kernels.attention.masks import visible

__all__ = ["block_softmax", "correct", "scale_rows", "sums_of_threads"]

SLACK = gl.constexpr(8.0)  # in powers of 2: probabilities are at most 256, with as many bits as below 1


@triton.constexpr_function
def scaling(n):
    """Assembly: n numbers of a thread times their factors, unless all factors of the warp are 1. A thread of wgmma's
    sums has two rows, two numbers of the one, then two of the other."""
    moved = f"setp.neu.f32 p, ${2 * n}, 1.0; setp.neu.or.f32 p, ${2 * n + 2}, 1.0, p; vote.sync.any.pred p, p, -1;"
    products = "".join(f" mul.f32 ${i}, ${i}, ${2 * n + i};" for i in range(n))
    return "{ .reg .pred p; " + moved + " @!p bra same;" + products + " same: }"


@triton.constexpr_function
def _operands(n):
    """n results, in the registers of what is scaled, and n factors."""
    return ",".join(["=f"] * n + [str(i) for i in range(n)] + ["f"] * n)


@gluon.jit
def sums_of_threads(p):
    """p (M, N) -> (M, 4): what each thread has of every row."""
    return gl.sum(gl.sum(p.reshape([p.shape[0], p.shape[1] // 8, 4, 2]), 1), 2)


@gluon.jit
def _largest(s, ROW: gl.constexpr):
    """The largest of every row (M,): four chains of a thread at once. One has 32 steps that wait for each other."""
    parts = gl.max(s.reshape([s.shape[0], 2, s.shape[1] // 16, 4, 2]), 2)
    return gl.convert_layout(gl.max(parts.reshape([s.shape[0], 16]), 1), ROW)


@gluon.jit
def scale_rows(x, factor):
    """Every row of x times its own factor."""
    return x * gl.convert_layout(factor, gl.SliceLayout(1, x.type.layout))[:, None]


@gluon.jit
def _scale_where_needed(x, factor):
    """`scale_rows` for wgmma's sums of 64 rows, where most turns have nothing to do."""
    gl.static_assert(x.shape[0] == 64)
    N: gl.constexpr = x.shape[1] // 2  # of each of 128 threads
    factor = gl.convert_layout(factor, gl.SliceLayout(1, x.type.layout))[:, None]
    return gl.inline_asm_elementwise(scaling(N), _operands(N), [x, factor], dtype=gl.float32, is_pure=True, pack=N)


@gluon.jit
def correct(x, factor, LAZY: gl.constexpr):
    """Sums of wgmma, every row times its own factor."""
    if LAZY:
        x = _scale_where_needed(x, factor)
    else:
        x = scale_rows(x, factor)
    return x


@gluon.jit
def block_softmax(
    s, row_max, offs_m, first_n, n_valid, diagonal, scale_log2,
    S: gl.constexpr, CAUSAL: gl.constexpr, MASKED: gl.constexpr, LAZY: gl.constexpr,
):  # fmt: skip
    """p (M, N) of one block, the maxima so far, what the sums so far are to be multiplied by (M,): as in walk.py.

    But scores are hidden first and scaled afterwards. So scale_log2 is above 0: of -inf it must not make NaN.
    """
    ROW: gl.constexpr = gl.SliceLayout(1, S)
    if MASKED:
        offs_n = first_n + gl.arange(0, s.shape[1], gl.SliceLayout(0, S))
        # Both questions, also where one would do: the assembler packs the answers to a single one into bits and takes
        # them out again: 893 instructions a turn at 80 columns instead of 771, when scores were scaled first.
        see = visible(offs_m[:, None], offs_n[None, :], n_valid, diagonal, CAUSAL, False)
        s = gl.where(see, s, -float("inf"))  # not yet scaled, so that scaling and subtracting stay one instruction
    new_max = gl.maximum(row_max, _largest(s, ROW) * scale_log2)
    shift = new_max
    if MASKED:  # -inf - -inf is NaN; any finite shift makes 0 of the terms of a row that has seen no key
        shift = gl.where(new_max == -float("inf"), 0.0, new_max)
    elif LAZY:
        new_max = gl.where(new_max > row_max + SLACK, new_max, row_max)
        shift = new_max
    p = gl.exp2(s * scale_log2 - shift[:, None])
    return p, new_max, gl.exp2(row_max - shift)
