"""Which blocks the products work in, and from how many rows of x on which route is taken where nothing was measured.

Chosen by what the compiler makes of them and by counting (benchmarks/notes/mx.md); not yet run on a GPU.
`python -m benchmarks.mx_sweep` tries others.
"""

from dataclasses import dataclass

import torch
import triton

__all__ = ["DEFAULT", "MATRIX", "VECTOR", "VECTOR_ROWS", "Matrix", "Routes", "Vector", "matrix_blocks", "vector_blocks"]


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


PIECE=512
@dataclass(frozen=True)
class Walk:
    n: int  # rows of weights a warp
    pieces: int  # of 512 columns at once
    unrolled: bool


@dataclass(frozen=True)
class Routes:
    """Fewest rows of x from which a route is taken; below both, weights are multiplied without tensor cores."""

    tensor_cores: int
    dequantize: int


# Few programs with much in flight each, where N makes enough of them: 256 weights a thread, 16 accesses of 16 bytes on
# their way at once, 5.9 instructions a weight (4 rows: 6.8, 2 rows: 8.8). Below, more programs: all of 4096 at once.
VECTOR = {"many": Vector(n=8, k=4096, warps=4), "few": Vector(n=4, k=2048, warps=4)}
MANY = 8192  # rows of weights
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
# Without tensor cores two rows of x take 11 instructions a weight and four 18; with them any 16 take 7.
DEFAULT = Routes(tensor_cores=2, dequantize=256)
INTERPRETED = Vector(n=2, k=64, warps=4), Matrix(16, 16, 32, 4, 1, split=3)


def vector_blocks(rows: int, N: int, device: torch.device) -> Vector:
    if device.type != "cuda":
        return INTERPRETED[0]
    return VECTOR["many" if rows == 1 and N >= MANY else "few"]  # several rows of x take registers of their own


def matrix_blocks(rows: int, N: int, K: int, device: torch.device, multiprocessors: int) -> Matrix:
    if device.type != "cuda":
        return INTERPRETED[1]
    blocks, wanted = MATRIX[min((most for most in MATRIX if rows <= most), default=max(MATRIX))]
    programs = triton.cdiv(N, blocks.n) * triton.cdiv(rows, blocks.m)
    split = min(MOST_PARTS, max(1, wanted * multiprocessors // programs), triton.cdiv(K, 4 * blocks.k))
    return Matrix(blocks.m, blocks.n, blocks.k, blocks.warps, blocks.stages, split)
