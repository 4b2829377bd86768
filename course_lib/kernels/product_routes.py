"""Which way a product is made: in large tiles, in parts, or from copies that fast loads reach.

    large    the tiles of product_tiles.py: the fastest where the result has several for each multiprocessor
    parts    product_parts.py: where rows are few, or the sum along K is long and the result has few tiles
    copied   product_copies.py, then large: where rows do not start at multiples of 16 bytes and the product is worth
             a pass over such a matrix

Each way has an estimate in us, and the shortest is taken. Of a program that makes a tile in `steps` blocks of K:

    large    START, and waves (TURN + steps x step), or the bytes of a, b and c at MEMORY where those take longer
    parts    the same, and for more than one part SUM and the bytes of the parts
    copied   as large, and COPY for every copy, and its bytes twice at MEMORY

A step takes what the tile's rate says, which was measured with every multiprocessor busy. The constants and the rates
of PARTS were fitted to `python -m benchmarks.products_sweep` on one H200 (benchmarks/notes/matmul.md).
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import triton

from course_lib.kernels.hardware import Limits, limits, multiprocessors
from course_lib.kernels.product_parts import narrow
from course_lib.kernels.product_tiles import Tile, allowed, tile_count

__all__ = ["NARROW", "PARTS", "Parts", "best_parts", "copies_us", "large_us", "parts_for"]

MEASURED_ON = 132  # multiprocessors
START, TURN = 2.5, 1.0  # us
SUM, COPY = 1.5, 2.5
FETCH = 6.5  # TB/s, of operands that lie partly in the L2 cache
MEMORY = 3.5  # TB/s, of copies
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 33, 48, 64)

# element size in bytes -> tiles: rows of a, columns of b, block of K
PARTS = {
    2: (
        Tile(16, 64, 128, 4, 4, rate=173),
        Tile(32, 64, 128, 4, 5, rate=285),
        Tile(64, 64, 128, 4, 3, rate=400),
        Tile(128, 64, 128, 4, 4, rate=628),
        Tile(128, 128, 64, 8, 4, rate=564),
    ),
    4: (Tile(16, 32, 32, 4, 4, rate=15), Tile(64, 64, 16, 4, 3, rate=40)),
}
# Where loads are narrow: they pass through registers, nothing is copied ahead, and larger tiles spill.
NARROW = {
    2: (Tile(16, 32, 128, 4, 3, rate=20), Tile(64, 64, 64, 4, 3, rate=120)),
    4: (Tile(16, 32, 32, 4, 4, rate=12), Tile(64, 64, 16, 4, 3, rate=32)),
}


@dataclass(frozen=True)
class Parts:
    tile: Tile
    split: int  # programs that share the sum of a tile
    us: float  # estimated


def large_us(tile, M: int, N: int, K: int, size: int, programs: int) -> float:
    """Of a product in large tiles of elements of `size` bytes, on a device with so many multiprocessors."""
    return START + max(triton.cdiv(tile_count(M, N, tile), programs) * _turn_us(tile, K), _moved_us(M, N, K, size))


def _turn_us(tile, K: int) -> float:
    return TURN + 2e-6 * tile.block_m * tile.block_n * K * MEASURED_ON / tile.rate


def _moved_us(M: int, N: int, K: int, size: int) -> float:
    return size * (M * K + K * N + M * N) * 1e-6 / FETCH


def copies_us(bytes_each: Iterable[int]) -> float:
    """Of a pass over each of some matrices."""
    return sum(COPY + 2e-6 * each / MEMORY for each in bytes_each)


def _parts_us(tile: Tile, split: int, M: int, N: int, K: int, size: int, programs: int) -> float:
    waves = triton.cdiv(tile_count(M, N, tile) * split, programs)
    a_part = triton.cdiv(triton.cdiv(K, tile.block_k), split) * tile.block_k
    us = START + max(waves * _turn_us(tile, a_part), _moved_us(M, N, K, size))
    return us + (SUM + 8e-6 * split * M * N / FETCH if split > 1 else 0)


def parts_for(M: int, N: int, K: int, a: torch.Tensor, b: torch.Tensor) -> Parts:
    """For a product of M x N x K of these operands on their device."""
    has = limits(a.device) if a.is_cuda else None
    return best_parts(M, N, K, a.element_size(), narrow(a) or narrow(b), has, multiprocessors(a.device))


@functools.lru_cache(maxsize=4096)
def best_parts(M: int, N: int, K: int, size: int, by_number: bool, has: Limits | None, programs: int) -> Parts:
    """The tile and the number of parts with the shortest estimate.

    size: bytes of an element; by_number: loads are narrow; has: None in the interpreter; programs: multiprocessors.
    """
    table = (NARROW if by_number else PARTS)[size]
    ways = [
        Parts(tile, split, _parts_us(tile, split, M, N, K, size, programs))
        for tile in (allowed(table, size, has) if has else table)
        for split in SPLITS
        if split == 1 or split * tile.block_k <= K
    ]
    return min(ways, key=lambda way: way.us)
