"""Which tile a matrix product is cut into: the measured tables, the rule that picks from them, the order of tiles.

Large tiles read fewer bytes for a FLOP; small ones fill the device when the product is small. The rates are TFLOP/s of
a 4096^3 product on one H200 (benchmarks/notes/matmul.md), and of one to three waves for 64 rows with blocks of 128
along K, which are made for that: they choose between tiles and promise nothing. Tables hold on
the architecture that they were measured on. Elsewhere `allowed` makes a table of the same tiles and smaller ones: those
that fit, each with as many stages as fit, and with rates of the model of fitting.py, scaled so that the best is the
best of the table.
"""

import functools
from dataclasses import dataclass, replace

import triton
import triton.language as tl

from course_lib.kernels.fitting import Need, fits, rate, residents
from course_lib.kernels.hardware import Limits

__all__ = [
    "GROUP_M",
    "PERSISTENT",
    "POINTER",
    "UNALIGNED",
    "Tile",
    "allowed",
    "constants",
    "fastest",
    "need_of",
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
        Tile(128, 256, 64, 8, 3, rate=786),
        Tile(128, 128, 64, 4, 4, rate=710),
        Tile(64, 128, 128, 4, 4, rate=640),
        Tile(64, 128, 64, 4, 5, rate=545),
        Tile(64, 64, 128, 4, 6, rate=520),
        Tile(64, 64, 64, 4, 5, rate=310),
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
# What a device gets besides, where it was not measured: on tensor cores, and with plain arithmetic, which takes every
# operand to registers and unrolls a whole block of K.
SMALL = Tile(64, 64, 32, 4, 3, rate=0), Tile(32, 32, 32, 4, 2, rate=0)
PLAIN = Tile(64, 64, 16, 4, 1, rate=0), Tile(32, 32, 16, 4, 1, rate=0)


def allowed(table: tuple, size: int, has: Limits, stored: int = 0) -> tuple:
    """The tiles of `table` for elements of `size` bytes on a device.

    `stored`: results that leave by the copy engine.
    """
    return table if has.measured else _fitted(table, size, has, stored)


@functools.cache
def _fitted(table: tuple, size: int, has: Limits, stored: int) -> tuple:
    """Of each tile the form with most stages that fits; of its programs as many as fit side by side."""
    arithmetic = size == 4 or not has.tensor_cores
    small = [replace(table[-1], **_shape(one)) for one in (PLAIN if arithmetic else SMALL)]
    tiles = []
    for tile in [*(() if arithmetic and size == 2 else table), *small]:
        forms = [replace(tile, stages=stages) for stages in range(tile.stages, 0, -1)]
        form = next((one for one in forms if fits(need_of(one, size, has, stored), has)), None)
        if form:
            tiles.append(_rated(form, need_of(form, size, has, stored), has))
    assert tiles, f"no tile of a product fits into {has.shared_bytes} B of shared memory"
    highest = max(tile.rate for tile in table) / max(tile.rate for tile in tiles)
    return tuple(dict.fromkeys(replace(tile, rate=tile.rate * highest) for tile in tiles))


def _shape(tile: Tile) -> dict:
    return {"block_m": tile.block_m, "block_n": tile.block_n, "block_k": tile.block_k} | {
        "warps": tile.warps,
        "stages": tile.stages,
    }


def _rated(tile, need: Need, has: Limits):
    programs = {"programs": min(tile.programs, residents(need, has))} if getattr(tile, "programs", 0) else {}
    return replace(tile, rate=rate(need, has), **programs)


def need_of(tile, size: int, has: Limits, stored: int = 0) -> Need:
    """What a program takes for a tile of a product, and for `stored` results of its shape on their way out."""
    m, n, k = tile.block_m, tile.block_n, tile.block_k
    buffers = tile.stages if has.products_read_shared else max(1, tile.stages - 1)
    out = m * n * size // getattr(tile, "parts", 1)
    walked = buffers * (m + n) * k * size
    shared = walked + stored * out if stored else max(walked, out)
    words = m * n + (0 if has.products_read_shared else (m + n) * k * size // 4)
    reuse = 2 * m * n / ((m + n) * size)
    return Need(shared + 1024, 50 + words // (32 * tile.warps), tile.warps, tile.stages, reuse, idle=0.15)


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
