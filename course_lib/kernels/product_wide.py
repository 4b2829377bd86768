"""A matrix product in tiles whose width is no power of two: MAIN columns and REST beside them.

    out = end(a b + bias)        a (M, K), b (K, N), both in reach of the copy engine; bias (N,) and an end where given

512 x 4304 results are 136 tiles of 128 x 128, and an H200 has 132 multiprocessors: four of them work twice as long as
the others. In tiles of 64 x 288 they are 120, and nobody waits. A program makes one tile with two sums: the rows of a
that it has fetched meet MAIN columns of b, then REST columns. For each FLOP that is slower than other tiles, so it pays
only where they leave many multiprocessors idle (benchmarks/notes/linear_gelu.md).
"""

from dataclasses import dataclass

import triton
import triton.language as tl

from course_lib.kernels.descriptors import describable, described
from course_lib.kernels.launching import launch
from course_lib.kernels.product_tiles import GROUP_M, tile_position

__all__ = ["Wide", "wide_kernel", "write_wide"]


@dataclass(frozen=True)
class Wide:
    block_m: int
    main: int
    rest: int
    block_k: int
    warps: int
    stages: int
    rate: float

    @property
    def block_n(self) -> int:
        return self.main + self.rest


@triton.jit
def _leave(acc, out_desc, h_desc, bias_ptr, m, n, N, END: tl.constexpr):
    if bias_ptr is not None:
        offs_n = n + tl.arange(0, acc.shape[1])
        acc += tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
    if h_desc is not None:
        h_desc.store([m, n], acc.to(h_desc.dtype))
    if END is not None:
        acc = END(acc)
    out_desc.store([m, n], acc.to(out_desc.dtype))


@triton.jit
def wide_kernel(
    out_desc, out_rest_desc, h_desc, h_rest_desc, a_desc, b_desc, b_rest_desc, bias_ptr,
    M, N, K,
    A_BY_COLUMN: tl.constexpr, B_BY_COLUMN: tl.constexpr, END: tl.constexpr,
    BLOCK_M: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    tile_m, tile_n = tile_position(tl.program_id(0), M, N, BLOCK_M, MAIN + REST, GROUP_M)
    m, n = tile_m * BLOCK_M, tile_n * (MAIN + REST)
    acc = tl.zeros((BLOCK_M, MAIN), tl.float32)
    rest = tl.zeros((BLOCK_M, REST), tl.float32)
    for k in range(0, K, BLOCK_K):
        # What lies outside a matrix arrives as zeros, and nothing is written there: no masks.
        a = a_desc.load([k, m]).T if A_BY_COLUMN else a_desc.load([m, k])  # (BLOCK_M, BLOCK_K)
        b = b_desc.load([n, k]).T if B_BY_COLUMN else b_desc.load([k, n])  # (BLOCK_K, MAIN)
        beside = (
            b_rest_desc.load([n + MAIN, k]).T if B_BY_COLUMN else b_rest_desc.load([k, n + MAIN])
        )  # (BLOCK_K, REST)
        acc = tl.dot(a, b, acc, input_precision=INPUT_PRECISION)
        rest = tl.dot(a, beside, rest, input_precision=INPUT_PRECISION)
    _leave(acc, out_desc, h_desc, bias_ptr, m, n, N, END)
    _leave(rest, out_rest_desc, h_rest_desc, bias_ptr, m, n + MAIN, N, END)


def write_wide(out, a, b, tile: Wide, input_precision: str = "ieee", bias=None, h=None, end=None) -> None:
    """end(a b + bias) into out, and a b + bias into h if that is given: `describable` both, a and b also by columns."""
    (M, K), N = a.shape, b.shape[1]
    a_by_column, b_by_column = not describable(a), not describable(b)
    results = [
        None if x is None else described(x, False, tile.block_m, width)
        for x in (out, h)
        for width in (tile.main, tile.rest)
    ]
    launch(
        wide_kernel, (triton.cdiv(M, tile.block_m) * triton.cdiv(N, tile.block_n),),
        *results,
        described(a, a_by_column, tile.block_m, tile.block_k),
        described(b, b_by_column, tile.block_k, tile.main), described(b, b_by_column, tile.block_k, tile.rest),
        bias,
        M, N, K,
        A_BY_COLUMN=a_by_column, B_BY_COLUMN=b_by_column, END=end,
        BLOCK_M=tile.block_m, MAIN=tile.main, REST=tile.rest, BLOCK_K=tile.block_k, GROUP_M=GROUP_M,
        INPUT_PRECISION=input_precision, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
