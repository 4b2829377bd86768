"""Which blocks each kernel works in: one table, keyed by the columns that are computed and by causal.

Not yet run on a GPU. Chosen by compiling for sm_90: shared memory fits, spills stay below SPILL_LIMIT, and of the rest
the one with most tensor core cycles for an issued instruction (benchmarks/notes/attention.md has the numbers).
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


@dataclass(frozen=True)
class Tuned:
    forward: Blocks
    dq: Blocks
    dkdv: Blocks


# (columns computed, causal) -> blocks of the three kernels, 2-byte types
TABLE = {
    (16, False): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2)),
    (16, True): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2)),
    (32, False): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2)),
    (32, True): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2)),
    (48, False): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2)),
    (48, True): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2)),
    (64, False): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2)),
    (64, True): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2)),
    (80, False): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 2)),
    (80, True): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 2)),
    (96, False): Tuned(Blocks(128, 128, 8, 2), Blocks(64, 64, 4, 2), Blocks(64, 128, 8, 2)),
    (96, True): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2), Blocks(64, 128, 8, 2)),
    (128, False): Tuned(Blocks(128, 128, 8, 2), Blocks(128, 64, 8, 2), Blocks(64, 128, 8, 2)),
    (128, True): Tuned(Blocks(128, 64, 8, 3), Blocks(128, 64, 8, 2), Blocks(64, 128, 8, 2)),
}
# fp32 keeps all its bits and so has no tensor cores: small blocks, for checking and not for speed.
FP32 = Tuned(Blocks(32, 32, 4, 1), Blocks(32, 32, 4, 1), Blocks(32, 32, 4, 1))
# The interpreter gets blocks so small that short sequences have several, and not square ones.
INTERPRETED = Tuned(Blocks(32, 16, 4, 1), Blocks(32, 16, 4, 1), Blocks(16, 32, 4, 1))


def tuned(head_size: int, causal: bool, dtype: torch.dtype, device: torch.device) -> Tuned:
    if device.type != "cuda":
        return INTERPRETED
    return FP32 if dtype == torch.float32 else TABLE[sum(split(head_size)), causal]
