"""Which tile a matrix product is cut into: the measured tables, the rule that picks from them, the order of tiles.

Large tiles read fewer bytes for a FLOP; small ones fill the device when the product is small. The rates are TFLOP/s of
a 4096^3 product on one H200 (benchmarks/notes/matmul.md): they choose between tiles and promise nothing.
"""

from dataclasses import dataclass

import triton
import triton.language as tl

__all__ = [
    "GROUP_M",
    "PERSISTENT",
    "POINTER",
    "UNALIGNED",
    "Tile",
    "constants",
    "fastest",
    "options",
    "tile_count",
    "tile_position",
]

GROUP_M = 8  # tile rows that are walked together: see tile_position


@dataclass(frozen=True)
class Tile:
    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    rate: float  # measured, every multiprocessor busy


# All tables: element size in bytes -> tiles.
PERSISTENT = {
    2: (
        Tile(128, 256, 64, 8, 3, rate=717),
        Tile(128, 128, 64, 4, 4, rate=686),
        Tile(64, 128, 64, 4, 5, rate=519),
        Tile(64, 64, 64, 4, 5, rate=285),
    ),
    4: (Tile(64, 64, 32, 4, 3, rate=34),),
}
POINTER = {
    2: (
        Tile(128, 256, 64, 8, 3, rate=688),
        Tile(128, 128, 64, 8, 4, rate=564),
        Tile(64, 64, 64, 4, 4, rate=321),
    ),
    4: (Tile(64, 64, 16, 4, 3, rate=44),),
}
# Rows that do not start at multiples of 16 bytes are loaded through registers in narrow pieces: no asynchronous copy,
# and 128 x 256 spills.
UNALIGNED = {
    2: (Tile(64, 64, 64, 4, 3, rate=123),),
    4: (Tile(128, 64, 16, 8, 3, rate=35),),
}


def fastest(table: tuple[Tile, ...], M: int, N: int, programs: int) -> Tile:
    """The tile whose waves take least time: `programs` tiles run at once, and a part-filled wave takes as long."""

    def time(tile: Tile) -> float:
        waves = triton.cdiv(tile_count(M, N, tile), programs)
        return waves * tile.block_m * tile.block_n / tile.rate

    return min(table, key=time)


def tile_count(M: int, N: int, tile) -> int:
    return triton.cdiv(M, tile.block_m) * triton.cdiv(N, tile.block_n)


def constants(tile, group_m: int, input_precision: str) -> dict:
    """What every kernel of a product takes as constants."""
    blocks = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k}
    return blocks | {"GROUP_M": group_m, "INPUT_PRECISION": input_precision}


def options(tile) -> dict:
    """The options of its launch."""
    return {"num_warps": tile.warps, "num_stages": tile.stages}


@triton.jit
def tile_position(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Which tile of c the `tile`-th one is: down GROUP_M tiles, then one column on; GROUP_M = 1 goes row by row.

    132 tiles of 128 x 256 that run together in row order touch about 1 tile row of a and 132 tile columns of b;
    in groups of 8 they touch 8 rows and about 17 columns: 6 times fewer bytes for the L2 cache to hold.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    group = tile // (GROUP_M * tiles_n)
    first_m = group * GROUP_M
    rows = min(tiles_m - first_m, GROUP_M)  # the last group may be lower
    in_group = tile - group * GROUP_M * tiles_n
    return first_m + in_group % rows, in_group // rows
