"""Which rung runs, which tile it works in, and how many programs of it a multiprocessor gets.

The first rung that is valid, from the fastest down:

    pingpong     an H100 or H200, a Triton whose Gluon was tried, 2-byte types in reach of the copy engine, at least a
                 tile for each group of warps of every multiprocessor, or just one for every multiprocessor, and an
                 entry in PINGPONG
    wide         the same cards and types, and an entry of WIDE whose waves take least time (product_wide.py)
    persistent   2-byte types in reach of a copy engine
    grouped      everything else

Before these, where it is estimated to be faster (product_routes.py): parts, for few rows and long sums. Matrices whose
rows do not start at multiples of 16 bytes are copied first where that is estimated to pay.

The rates order the entries of GELU and SLOPE, as in product_tiles.py: TFLOP/s of large products on an H200, the GELU
included. `python -m benchmarks.linear_gelu_sweep` measured those of 128 x 128 and 128 x 256, at K = 4096 and 1152
(benchmarks/notes/linear_gelu.md). Those of 64 rows with blocks of 128 along K and those of WIDE put them in the order
that `python -m benchmarks.products_sweep` found for 64 to 1024 rows; those of the other small tiles are predicted.
"""

from dataclasses import dataclass

import torch
import triton

from course_lib.kernels.descriptors import describable
from course_lib.kernels.hardware import copy_engine, gluon_is_known, limits, multiprocessors, on_hopper
from course_lib.kernels.product_tiles import POINTER, Tile, allowed, fastest
from course_lib.kernels.product_wide import Wide

__all__ = [
    "FUSED_SLOPE",
    "GELU",
    "PINGPONG",
    "SLOPE",
    "WIDE",
    "Blocks",
    "Turns",
    "blocks_for",
    "large_tile",
    "reached",
    "turns_for",
]


@dataclass(frozen=True)
class Blocks:
    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    rate: float
    programs: int = 1  # a multiprocessor; each walks over many tiles. 0: a program makes one tile
    parts: int = 1  # in which a tile leaves: 2 needs half the shared memory for it

    @property
    def flatten(self) -> bool:
        """One loop of two, for a program that is alone on its multiprocessor; others overlap with each other."""
        return self.programs == 1

    def grid(self, tiles: int, device: torch.device) -> int:
        return min(tiles, self.programs * multiprocessors(device)) if self.programs else tiles


# element size in bytes -> tiles
GELU = {
    2: (
        Blocks(128, 256, 64, 8, 3, 600),
        Blocks(128, 128, 64, 4, 3, 575, programs=2, parts=2),
        Blocks(64, 128, 128, 4, 4, 530),
        Blocks(64, 128, 64, 4, 5, 480),
        Blocks(64, 64, 128, 4, 6, 470),
        Blocks(64, 64, 64, 4, 5, 260),
    ),
    4: (Blocks(64, 64, 32, 4, 3, 34),),
}
# Tiles of two widths, on the architecture they were measured on: see product_wide.py.
WIDE = Wide(64, 256, 32, 64, 4, 4, rate=480), Wide(64, 128, 16, 128, 4, 3, rate=395)
SLOPE = {
    2: (
        Blocks(128, 128, 64, 4, 3, 485, programs=2, parts=2),
        Blocks(64, 128, 64, 4, 4, 400),
        Blocks(64, 64, 64, 4, 5, 250),
    ),
    4: (Blocks(64, 64, 32, 4, 3, 34),),
}
# The interpreter gets tiles so small that short matrices have several, and not square ones.
INTERPRETED = Blocks(32, 64, 16, 4, 1, rate=600, programs=1, parts=2)


def blocks_for(table: dict[int, tuple[Blocks, ...]], x: torch.Tensor, N: int, stored: int = 1) -> Blocks:
    """Of `table`, for a result of (rows of x) x N; `stored` matrices of that shape come and go by the copy engine."""
    if x.device.type != "cuda":
        return INTERPRETED
    tiles = allowed(table[x.element_size()], x.element_size(), limits(x.device), stored)
    return fastest(tiles, x.shape[0], N, multiprocessors(x.device))


def large_tile(x: torch.Tensor, N: int) -> Tile | Blocks | Wide:
    """The tile in which x times N columns is made: of the persistent rung or wide for x in reach, or of the grouped."""
    if x.device.type != "cuda":
        return INTERPRETED
    has, size, programs = limits(x.device), x.element_size(), multiprocessors(x.device)
    if size == 4 or not copy_engine(x.device):
        return fastest(allowed(POINTER[size], size, has), x.shape[0], N, programs)
    tiles = allowed(GELU[size], size, has, 1)
    return fastest((*tiles, *WIDE) if has.measured else tiles, x.shape[0], N, programs)


@dataclass(frozen=True)
class Turns:
    """For the rung whose groups of warps take turns."""

    stages: int  # blocks of both factors in shared memory or on their way there
    group_m: int = 8  # tile rows that are walked together


# kernel -> how groups that take turns are launched: the fastest rung at both sizes of the benchmark, on an H200.
PINGPONG = {"gelu": Turns(5, 8), "slope": Turns(5, 4)}
# The way back through a GELU where groups cannot take turns: the product with the slope at its end, or the vendor's
# product and one pass over it. The plain rung's end is long, and measured it takes 1.02 to 1.06 of the other's time.
FUSED_SLOPE = False


def reached(*matrices: torch.Tensor | None) -> bool:
    """Can the copy engine address all of these by rows?"""
    given = [x for x in matrices if x is not None]
    return copy_engine(given[0].device) and all(map(describable, given))


def turns_for(kernel: str, out: torch.Tensor, *matrices: torch.Tensor | None) -> Turns | None:
    """What the rung of turns is launched with for "gelu" or "slope", or None where it is not valid, or not faster."""
    entry = PINGPONG.get(kernel)
    if entry is None or not on_hopper(out.device):
        return None
    tiles = triton.cdiv(out.shape[0], 128) * triton.cdiv(out.shape[1], 128)
    programs = multiprocessors(out.device)
    one_each = kernel == "gelu" and 0.9 * programs <= tiles <= programs  # measured for that kernel alone
    enough = tiles >= 2 * programs or one_each
    if not enough or out.element_size() != 2 or not reached(out, *matrices):
        return None
    return entry if gluon_is_known() else None
