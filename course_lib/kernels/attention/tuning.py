"""Which blocks each kernel works in: one table, keyed by the columns that are computed and by causal.

Each entry is the fastest of 9 to 21 that `python -m benchmarks.attention_sweep` tried on an H200: on 4 x 16 heads of
4096, and for (80, False) on 256 x 16 heads of 256 and head size 72. benchmarks/notes/attention.md has the figures.
"""

from dataclasses import dataclass

import torch

from course_lib.kernels.attention.parts import split

__all__ = ["SPILL_LIMIT", "TABLE", "Blocks", "Tuned", "tuned"]

SPILL_LIMIT = 160  # bytes a thread; only dk and dv at 128 columns come near it: 31 of 490 instructions of its loop


@dataclass(frozen=True)
class Blocks:
    m: int  # queries a block
    n: int  # keys a block
    warps: int
    stages: int  # blocks of the inner loop that are in shared memory or on their way there
    registers: int | None = None  # at most so many a thread, where that makes room for one more program


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
    (64, False): Tuned(Blocks(64, 128, 4, 2), Blocks(128, 64, 8, 3), Blocks(64, 64, 4, 3, 168)),
    (64, True): Tuned(Blocks(64, 128, 4, 2), Blocks(64, 64, 4, 2, 128), Blocks(64, 64, 4, 3)),
    (80, False): Tuned(Blocks(128, 64, 4, 3), Blocks(64, 32, 4, 3), Blocks(32, 64, 4, 3, 168)),
    (80, True): Tuned(Blocks(128, 64, 4, 3), Blocks(64, 32, 4, 3), Blocks(64, 64, 4, 3)),
    (96, False): Tuned(Blocks(128, 64, 4, 3), Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 3)),
    (96, True): Tuned(Blocks(128, 64, 4, 3), Blocks(64, 64, 4, 2, 168), Blocks(64, 64, 4, 2)),
    (128, False): Tuned(Blocks(128, 64, 4, 2), Blocks(128, 64, 8, 3), Blocks(64, 64, 4, 2)),
    (128, True): Tuned(Blocks(64, 64, 4, 3), Blocks(128, 64, 8, 3), Blocks(64, 64, 4, 2)),
}
# fp32 keeps all its bits and so has no tensor cores: small blocks, for checking and not for speed.
FP32 = Tuned(Blocks(32, 32, 4, 1), Blocks(32, 32, 4, 1), Blocks(32, 32, 4, 1))
# The interpreter gets blocks so small that short sequences have several, and not square ones.
INTERPRETED = Tuned(Blocks(32, 16, 4, 1), Blocks(32, 16, 4, 1), Blocks(16, 32, 4, 1))


def tuned(head_size: int, causal: bool, dtype: torch.dtype, device: torch.device) -> Tuned:
    if device.type != "cuda":
        return INTERPRETED
    return FP32 if dtype == torch.float32 else TABLE[sum(split(head_size)), causal]
