"""Which way a product is made: in large tiles, in parts, or from copies that fast loads reach.

    large    the tiles of product_tiles.py: the fastest where the result has several for each multiprocessor
    parts    product_parts.py: where rows are few, or the sum along K is long and the result has few tiles
    copied   product_copies.py, then large: where rows do not start at multiples of 16 bytes and the product is worth
             a pass over such a matrix

Each way has an estimate in us, and the shortest is taken. For programs that make a tile each, in waves:

    large    START, and for each wave TURN and what the tile's rate says; or the bytes of a, b, c if those take longer
    parts    the same, but the root of the sum of both squares: neither hides all of the other. Where sums are shared,
             also SUM, and the bytes of the parts at SHARED
    copied   as large, and for every copy COPY, and its bytes twice at MEMORY

Bytes arrive at CACHE where all of them fit into the L2 cache, which then has some of them, and at MEMORY elsewhere.
Loads of less than 16 bytes make parts as many times slower. The constants and the rates of PARTS were fitted to
`python -m benchmarks.products_sweep` on one H200 (benchmarks/notes/matmul.md).
"""

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
import triton

from course_lib.kernels.hardware import Limits, limits, multiprocessors
from course_lib.kernels.product_parts import load_bytes
from course_lib.kernels.product_tiles import Tile, allowed, tile_count

__all__ = ["NARROW", "PARTS", "Parts", "best_parts", "copies_us", "large_us", "parts_for"]

MEASURED_ON = 132  # multiprocessors
START, TURN = 2.5, 1.0  # us
SUM, COPY = 1.5, 2.5
CACHE, MEMORY = 12.0, 4.0  # TB/s
CACHED = 50e6  # bytes
SHARED = 3.0  # TB/s, of parts, written and read
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 33, 48, 64)
LOW = 16  # rows, up to which a product of 2-byte types is made in parts whatever the estimates
FEW = 32  # rows, up to which tiles are taken however many there are: beyond one wave higher ones lose to large tiles

# element size in bytes -> tiles: rows of a, columns of b, block of K
PARTS = {
    2: (
        Tile(16, 64, 128, 4, 4, rate=185),
        Tile(32, 64, 128, 4, 5, rate=335),
        Tile(64, 64, 128, 4, 3, rate=470),
        Tile(128, 64, 128, 4, 4, rate=560),
    ),
    4: (Tile(64, 64, 16, 4, 3, rate=12),),
}
# Where loads are of single numbers: they pass through registers, nothing is copied ahead, and larger tiles spill.
NARROW = {2: (Tile(16, 32, 128, 4, 3, rate=21), Tile(64, 64, 64, 4, 3, rate=80))}


@dataclass(frozen=True)
class Parts:
    tile: Tile
    split: int  # programs that share the sum of a tile
    us: float  # estimated; 0 where no other way is to be looked at


def large_us(tile, M: int, N: int, K: int, size: int, programs: int) -> float:
    """Of a product in large tiles of elements of `size` bytes, on a device with so many multiprocessors."""
    return START + max(triton.cdiv(tile_count(M, N, tile), programs) * _turn_us(tile, K), _moved_us(M, N, K, size))


def _turn_us(tile, K: int) -> float:
    return TURN + 2e-6 * tile.block_m * tile.block_n * K * MEASURED_ON / tile.rate


def _moved_us(M: int, N: int, K: int, size: int) -> float:
    moved = size * (M * K + K * N + M * N)
    return moved * 1e-6 / (CACHE if moved < CACHED else MEMORY)


def copies_us(bytes_each: Iterable[int]) -> float:
    """Of a pass over each of some matrices."""
    return sum(COPY + 2e-6 * each / MEMORY for each in bytes_each)


def _parts_us(tile: Tile, split: int, M: int, N: int, K: int, size: int, programs: int) -> float:
    waves = triton.cdiv(tile_count(M, N, tile) * split, programs)
    part = triton.cdiv(triton.cdiv(K, tile.block_k), split) * tile.block_k
    us = START + math.hypot(waves * _turn_us(tile, part), _moved_us(M, N, K, size))
    return us + (SUM + 8e-6 * split * M * N / SHARED if split > 1 else 0)


def parts_for(M: int, N: int, K: int, a: torch.Tensor, b: torch.Tensor) -> Parts:
    """For a product of M x N x K of these operands on their device."""
    has = limits(a.device) if a.is_cuda else None
    width = min(load_bytes(a), load_bytes(b))
    return best_parts(M, N, K, a.element_size(), width, has, multiprocessors(a.device))


@functools.lru_cache(maxsize=4096)
def best_parts(M: int, N: int, K: int, size: int, width: int, has: Limits | None, programs: int) -> Parts:
    """The tile and the number of parts with the shortest estimate.

    size: bytes of an element; width: bytes of a load; has: None in the interpreter; programs: multiprocessors.
    """
    table = (NARROW if width < 4 else PARTS)[size]
    table = allowed(table, size, has) if has else table
    ways = []
    for tile in (tile for tile in table if tile.block_m >= min(M, 64)):
        slowed = tile if width < 4 else replace(tile, rate=tile.rate * width / 16)
        for split in SPLITS:
            one_wave = tile_count(M, N, tile) * split <= programs
            if split > 1 and not (one_wave and split * tile.block_k <= K):
                continue
            # Tiles of 128 rows are there for sums to share.
            apt = tile.block_m <= FEW or (one_wave and (split > 1 or tile.block_m <= 64))
            us = _parts_us(slowed, split, M, N, K, size, programs) if apt else math.inf
            ways.append(Parts(tile, split, us))
    best = min(ways, key=lambda way: way.us)
    return replace(best, us=0.0) if M <= LOW and size == 2 and width == 16 else best
