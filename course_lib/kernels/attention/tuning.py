"""Which blocks each kernel works in: one table, keyed by the columns that are computed and by causal.

Each entry is the fastest of 9 to 22 that `python -m benchmarks.attention_sweep` tried on an H200: on 4 x 16 heads of
4096, and for (80, False) on 256 x 16 heads of 256 and head size 72. benchmarks/notes/attention.md has the figures.
"""

from dataclasses import dataclass

import torch

from course_lib.kernels.attention.parts import split

__all__ = ["GROUPS", "SPILL_LIMIT", "TABLE", "Blocks", "Groups", "Tuned", "tuned"]

SPILL_LIMIT = 160  # bytes a thread; only dk and dv at 128 columns come near it: 31 of 490 instructions of its loop


@dataclass(frozen=True)
class Blocks:
    m: int  # queries a block
    n: int  # keys a block
    warps: int
    stages: int  # blocks of the inner loop that are in shared memory or on their way there
    registers: int | None = None  # at most so many a thread, where that makes room for one more program
    edge: int | None = None  # forward: begin with the keys that some queries do not see, so many a block


@dataclass(frozen=True)
class Groups:
    """Of the kernels with jobs for their warps, where two groups hold 64 rows each."""

    block: int  # rows of what is walked over, a turn: keys forward, queries for dk and dv
    stages: int  # such blocks in shared memory or on their way there
    held: int = 1  # 2: the rows of the next tile are on their way while this one's are in use
    persistent: bool = True  # as many programs as multiprocessors, each with many tiles; else a program a tile
    together: int = 1  # causal: of so many heads the longest tiles come first
    turns: bool = True  # forward: the two groups take turns at the tensor cores
    polynomial: bool = False  # forward: an eighth of the exponentials by multiplying and adding


@dataclass(frozen=True)
class Tuned:
    forward: Blocks
    dq: Blocks
    dkdv: Blocks


# (columns computed, causal) -> blocks of the three kernels, 2-byte types
TABLE = {
    (16, False): Tuned(Blocks(64, 128, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3)),
    (16, True): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2)),
    (32, False): Tuned(Blocks(64, 128, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3)),
    (32, True): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2)),
    (48, False): Tuned(Blocks(128, 64, 4, 3), Blocks(128, 64, 8, 3), Blocks(64, 64, 4, 3)),
    (48, True): Tuned(Blocks(128, 64, 4, 3), Blocks(128, 64, 8, 3), Blocks(64, 64, 4, 2)),
    (64, False): Tuned(Blocks(64, 128, 4, 2, edge=64), Blocks(128, 64, 8, 3), Blocks(64, 64, 4, 3, 168)),
    (64, True): Tuned(Blocks(64, 128, 4, 2, edge=64), Blocks(64, 64, 4, 2, 128), Blocks(64, 64, 4, 3)),
    (80, False): Tuned(Blocks(128, 64, 4, 3), Blocks(64, 32, 4, 3), Blocks(32, 64, 4, 3, 168)),
    (80, True): Tuned(Blocks(128, 64, 4, 3), Blocks(64, 32, 4, 3), Blocks(64, 64, 4, 3)),
    (96, False): Tuned(Blocks(128, 64, 4, 3), Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 3)),
    (96, True): Tuned(Blocks(128, 64, 4, 3), Blocks(64, 64, 4, 2, 168), Blocks(64, 64, 4, 2)),
    (128, False): Tuned(Blocks(128, 64, 4, 2), Blocks(128, 64, 8, 3), Blocks(64, 64, 4, 2)),
    (128, True): Tuned(Blocks(64, 64, 4, 3), Blocks(128, 64, 8, 3), Blocks(64, 64, 4, 2)),
}
# (kernel, columns computed, causal) -> where the hand-scheduled kernel is the fastest that was measured on an H200.
GROUPS = {
    ("forward", 64, False): Groups(128, 3, held=2, polynomial=True),
    ("forward", 80, False): Groups(128, 3, held=2),
    ("forward", 80, True): Groups(128, 3, persistent=False, together=8),
    ("forward", 128, False): Groups(128, 2, held=2),
    ("forward", 128, True): Groups(128, 2, persistent=False, together=8),
    ("dkdv", 80, False): Groups(64, 4, held=2),
    ("dkdv", 80, True): Groups(64, 3, persistent=False),
    ("dkdv", 128, False): Groups(32, 4),
}
# fp32 keeps all its bits and so has no tensor cores: small blocks, for checking and not for speed.
FP32 = Tuned(Blocks(32, 32, 4, 1), Blocks(32, 32, 4, 1), Blocks(32, 32, 4, 1))
# The interpreter gets blocks so small that short sequences have several, and not square ones.
INTERPRETED = Tuned(Blocks(16, 32, 4, 1, edge=16), Blocks(32, 16, 4, 1), Blocks(16, 32, 4, 1))


def tuned(head_size: int, causal: bool, dtype: torch.dtype, device: torch.device) -> Tuned:
    if device.type != "cuda":
        return INTERPRETED
    return FP32 if dtype == torch.float32 else TABLE[sum(split(head_size)), causal]
