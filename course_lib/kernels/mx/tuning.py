"""Which blocks the products work in, and from how many rows of x on which route is taken.

Times: us on an H200 with Triton 3.6, each call on weights of its own. `python -m benchmarks.mx_sweep` tries other
blocks of the taught rungs. MATRIX is chosen by what the compiler makes of it and by counting (benchmarks/notes/mx.md).
"""

import functools
from dataclasses import dataclass, replace

import torch
import triton

from course_lib.kernels.fitting import Need, best, residents
from course_lib.kernels.hardware import Limits, limits

__all__ = [
    "DEFAULT",
    "DIRECT",
    "FETCHED",
    "MANY",
    "MATRIX",
    "PIECE",
    "ROUTES",
    "VECTOR",
    "VECTOR_ROWS",
    "WALK",
    "Direct",
    "Fetched",
    "Matrix",
    "Routes",
    "Vector",
    "Walk",
    "direct_blocks",
    "fetched_blocks",
    "matrix_blocks",
    "routes_for",
    "vector_blocks",
    "walk_blocks",
]


@dataclass(frozen=True)
class Vector:
    n: int  # rows of weights a program
    k: int  # columns at once
    warps: int


@dataclass(frozen=True)
class Matrix:
    m: int  # rows of x a program
    n: int  # rows of weights a program
    k: int
    warps: int
    stages: int
    split: int = 1  # pieces along K


@dataclass(frozen=True)
class Direct:
    m: int  # rows of x a program: 8, 16, 32, 64
    n: int  # rows of weights a program, 16 or more for each warp beside another
    warps: int  # along K
    beside: int  # times so many along n


@dataclass(frozen=True)
class Fetched:
    m: int  # rows of x a program: 16, 32, 64, 128, 256
    n: int  # rows of weights a program: 128 or 256, half of them for each group of warps
    k: int  # columns at once: 64 or 128
    stages: int
    split: int = 1  # pieces along K


@dataclass(frozen=True)
class Walk:
    n: int  # rows of weights a warp, which is a program
    pieces: int  # of PIECE columns at once
    unrolled: bool


@dataclass(frozen=True)
class Routes:
    """Fewest rows of x from which a route is taken; below both, weights are multiplied without tensor cores."""

    tensor_cores: int
    dequantize: int


MANY = 8192  # rows of weights
# 128 weights a thread on their way at once where N makes enough programs, 64 below. Of N 14336, K 4096: 20.8 (8 rows of
# 4096: 22.7). N 4096: K 4096 8.3, 14336 22.8.
VECTOR = {"many": Vector(n=4, k=4096, warps=4), "few": Vector(n=4, k=2048, warps=4)}
VECTOR_ROWS = 8  # most rows of x: they are unrolled
# rows of x, at most -> blocks, and how many programs a multiprocessor holds: so many are wanted, and splitting along K
# makes them where N does not. 4 programs of 4 warps: each waits for its loads, its barrier, its product in turn.
MATRIX = {
    16: (Matrix(16, 64, 128, 4, 4), 4),
    32: (Matrix(32, 64, 128, 4, 4), 3),
    64: (Matrix(64, 64, 128, 4, 4), 2),
    128: (Matrix(128, 128, 64, 8, 3), 1),
}
MOST_PARTS = 8
# The tuned rungs, gemv_warps.py and gemm_registers.py; in brackets the time over that of cuBLAS for bf16 weights.
PIECE = 512  # columns: 16 adjacent weights for each thread of a warp
WALK = {
    "many": Walk(n=2, pieces=4, unrolled=True),  # N 14336, K 4096: 17.7 (0.58)
    "few": Walk(n=2, pieces=2, unrolled=False),  # N 4096: K 4096 6.6 (0.49), 14336 17.4 (0.54); N 14336 18.4 (0.60)
}
MOST_UNROLLED = 2  # steps: four take 162 registers instead of 88
# rows of x, at most -> blocks for N of MANY and more (times of N 14336, K 4096), and below (N = K = 4096)
DIRECT = {
    # 2, 4, 8 rows: 18.8, 19.1, 19.6 (0.58-0.61); 7.5, 7.7, 7.9 (0.56-0.60)
    8: (Direct(8, 32, 4, 1), Direct(8, 16, 8, 1)),
    # 20.5 (0.67); 8.8 (0.65), and 22.7 (0.69) where K is 14336
    16: (Direct(16, 32, 4, 1), Direct(16, 16, 8, 1)),
    # 30.4 (0.99); 10.5 (0.76)
    32: (Direct(32, 64, 2, 2), Direct(32, 32, 8, 1)),
    # 36.8 (1.15); 12.4 (1.05)
    64: (Direct(64, 64, 2, 2), Direct(64, 32, 8, 1)),
}
# rows of x, at most -> blocks of gemm_fetched.py, as in DIRECT, and from how many columns on they are taken before
# DIRECT's where N is below MANY: four parts along K are added up in a second launch, which short rows do not repay. In
# brackets again the time over that of cuBLAS for bf16 weights, at N 14336, K 4096; N = K = 4096; N 4096, K 14336.
FETCHED = {
    # 22.8 (0.74); 10.8 (0.78); 25.0 (0.75). DIRECT's 30.4, 10.5, 28.9: by a line for each, as fast at 4900 columns
    32: (Fetched(32, 128, 128, 8), Fetched(32, 128, 128, 8, 4), 5120),
    # 27.2 (0.85); 12.3 (1.04); 26.9 (0.76). DIRECT's 36.8, 12.4, 33.4: as fast at 3900 columns
    64: (Fetched(64, 128, 128, 6), Fetched(64, 128, 128, 6, 4), 4096),
    # 37.6 (1.12); 15.2 (1.10); 35.7 (0.94)
    128: (Fetched(128, 128, 128, 4), Fetched(128, 128, 128, 4, 4), 0),
    # 192 rows: 55.5 (1.46); 20.9 (1.25); 53.1 (1.15). 256: 61.2 (1.38); 23.3 (1.36); 57.3 (1.09)
    256: (Fetched(256, 128, 64, 5), Fetched(256, 128, 64, 5, 4), 0),
}
FETCHED_ABOVE = 16  # rows of x: there DIRECT takes 20.5, 8.8 and 22.7; these were tried from 32 on
MOST_COLUMNS = 2**15  # all exponents of a program pass through registers at once: 111 a thread at 28672 columns, not 70
# (N, K) -> where one route overtakes the one before, measured on an H200 by `python -m benchmarks.mx_routes`, without
# gemm_fetched.py: where it runs, up to 256 rows of x, it is faster than dequantizing at every size that was measured.
ROUTES = {
    (14336, 4096): Routes(tensor_cores=2, dequantize=96),
    (4096, 4096): Routes(tensor_cores=2, dequantize=96),
    (4096, 14336): Routes(tensor_cores=2, dequantize=128),
}
# Other shapes. Without tensor cores two rows of x take 11 instructions a weight and four 18; with them any 8 take 3.4.
DEFAULT = Routes(tensor_cores=2, dequantize=256)
INTERPRETED = Vector(n=2, k=64, warps=4), Matrix(16, 16, 32, 4, 1, split=3)


def routes_for(N: int, K: int) -> Routes:
    return ROUTES.get((N, K), DEFAULT)


def vector_blocks(rows: int, N: int, device: torch.device) -> Vector:
    if device.type != "cuda":
        return INTERPRETED[0]
    return VECTOR["many" if rows == 1 and N >= MANY else "few"]  # several rows of x take registers of their own


def matrix_blocks(rows: int, N: int, K: int, device: torch.device, multiprocessors: int, itemsize: int = 2) -> Matrix:
    """`itemsize`: bytes of a number of x."""
    if device.type != "cuda":
        return INTERPRETED[1]
    blocks, wanted = MATRIX[min((most for most in MATRIX if rows <= most), default=max(MATRIX))]
    if not (has := limits(device)).measured:
        blocks = _fitted(blocks, itemsize, has)
        wanted = min(wanted, residents(need_of(blocks, itemsize, has), has))
    programs = triton.cdiv(N, blocks.n) * triton.cdiv(rows, blocks.m)
    split = min(MOST_PARTS, max(1, wanted * multiprocessors // programs), triton.cdiv(K, 4 * blocks.k))
    return Matrix(blocks.m, blocks.n, blocks.k, blocks.warps, blocks.stages, split)


@functools.cache
def _fitted(blocks: Matrix, itemsize: int, has: Limits) -> Matrix:
    """The entry, or smaller blocks with fewer stages, whichever the model says is fastest of those that fit."""
    arithmetic = itemsize == 4 or not has.tensor_cores
    smaller = [
        replace(blocks, m=min(blocks.m, m), n=n, k=k, warps=4, stages=stages)
        for m, n, k in (((16, 64, 32), (16, 32, 32)) if arithmetic else ((64, 64, 64), (32, 64, 64), (16, 64, 64)))
        for stages in (blocks.stages, 2, 1)
    ]
    candidates = smaller if arithmetic else [blocks, *smaller]
    return best(candidates, lambda one: need_of(one, itemsize, has), has)


def need_of(blocks: Matrix, itemsize: int, has: Limits) -> Need:
    """Weights wait as bytes, x as it is; then both are operands, and both pass through shared memory."""
    m, n, k = blocks.m, blocks.n, blocks.k
    buffers = blocks.stages if has.products_read_shared else max(1, blocks.stages - 1)
    shared = buffers * (n * k + m * k * itemsize) + n * k * max(itemsize, 2)
    words = m * n + n * k + (0 if has.products_read_shared else (m + n) * k * itemsize // 4)
    return Need(shared + 2048, 50 + words // (32 * blocks.warps), blocks.warps, blocks.stages, 2 * m * n / (n + m))


def walk_blocks(N: int, K: int) -> Walk | None:
    """None where K is not whole steps of any."""
    kinds = ("many", "few") if N >= MANY else ("few",)
    for blocks in (WALK[kind] for kind in kinds):
        steps, rest = divmod(K, PIECE * blocks.pieces)
        if steps and not rest and (steps <= MOST_UNROLLED or not blocks.unrolled):
            return blocks
    return None


def direct_blocks(rows: int, N: int, K: int) -> Direct | None:
    """None for more rows of x than were measured, and for rows of weights that are too long."""
    most = min((most for most in DIRECT if rows <= most), default=None)
    return None if most is None or K > MOST_COLUMNS else DIRECT[most][0 if N >= MANY else 1]


def fetched_blocks(rows: int, N: int, K: int) -> Fetched | None:
    """None for more rows of x than the table has, and where `direct_blocks` is faster."""
    most = min((most for most in FETCHED if rows <= most), default=None)
    if most is None or rows <= FETCHED_ABOVE:
        return None
    many, few, columns = FETCHED[most]
    return many if N >= MANY else few if K >= columns else None
