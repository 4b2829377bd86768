"""The softmax of the forward kernel with jobs for its warps: one block of scores, in the registers of one group.

wgmma leaves a row to the four threads of a quad: each holds columns 8 i + 2 j and 8 i + 2 j + 1, j its number among the
four. What a turn need not know of the other three is left for the end: each thread keeps the sum of its own columns,
and the four are added once a tile, which saves 4 shuffles and 4 additions a turn.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from course_lib.kernels.attention.masks import visible

__all__ = ["block_softmax", "scale_rows", "sums_of_threads"]


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
def block_softmax(
    s, row_max, offs_m, first_n, n_valid, diagonal, scale_log2,
    S: gl.constexpr, CAUSAL: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """p (M, N) of one block, the maxima so far, what the sums so far are to be multiplied by (M,): see forward.py."""
    ROW: gl.constexpr = gl.SliceLayout(1, S)
    if MASKED:
        offs_n = first_n + gl.arange(0, s.shape[1], gl.SliceLayout(0, S))
        # Both questions, also where one would do: the assembler packs the answers to a single one into bits and takes
        # them out again, 893 instructions a turn at 80 columns instead of 771.
        see = visible(offs_m[:, None], offs_n[None, :], n_valid, diagonal, CAUSAL, False)
        s = gl.where(see, s * scale_log2, -float("inf"))
        new_max = gl.maximum(row_max, _largest(s, ROW))
        shift = gl.where(new_max == -float("inf"), 0.0, new_max)
        p = gl.exp2(s - shift[:, None])
    else:
        new_max = gl.maximum(row_max, _largest(s, ROW) * scale_log2)
        shift = new_max
        p = gl.exp2(s * scale_log2 - shift[:, None])
    return p, new_max, gl.exp2(row_max - shift)
