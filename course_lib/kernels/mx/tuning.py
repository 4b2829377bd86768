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
class Routes:
    """Fewest rows of x from which a route is taken; below both, weights are multiplied without tensor cores."""

    tensor_cores: int
    dequantize: int


# 4 rows of 4096 weights are 128 bytes a thread: 8 accesses of 16 bytes on their way at once.
VECTOR = Vector(n=4, k=4096, warps=4)
VECTOR_ROWS = 8  # most rows of x: they are unrolled
# rows of x, at most -> blocks; `split` is what fills the device, found when N and K are known
MATRIX = {
    16: Matrix(16, 64, 128, 4, 4),
    32: Matrix(32, 64, 128, 4, 4),
    64: Matrix(64, 64, 128, 4, 4),
    128: Matrix(128, 128, 64, 8, 3),
}
PROGRAMS = 2  # a multiprocessor, that splitting along K aims at
MOST_PARTS = 8
DEFAULT = Routes(tensor_cores=5, dequantize=256)
INTERPRETED = Vector(n=2, k=64, warps=4), Matrix(16, 16, 32, 4, 1, split=3)


def vector_blocks(device: torch.device) -> Vector:
    return VECTOR if device.type == "cuda" else INTERPRETED[0]


def matrix_blocks(rows: int, N: int, K: int, device: torch.device, multiprocessors: int) -> Matrix:
    if device.type != "cuda":
        return INTERPRETED[1]
    blocks = MATRIX[min((most for most in MATRIX if rows <= most), default=max(MATRIX))]
    programs = triton.cdiv(N, blocks.n) * triton.cdiv(rows, blocks.m)
    split = min(MOST_PARTS, max(1, PROGRAMS * multiprocessors // programs), triton.cdiv(K, 4 * blocks.k))
    return Matrix(blocks.m, blocks.n, blocks.k, blocks.warps, blocks.stages, split)
