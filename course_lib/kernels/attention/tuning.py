"""Which blocks each kernel works in: one table, keyed by the columns that are computed and by causal.

Not yet run on a GPU: chosen by compiling for sm_90 (no spills, shared memory fits) and by what is known of the sizes
64 and 128 (benchmarks/notes/attention.md).
"""

from dataclasses import dataclass

import torch

from course_lib.kernels.attention.parts import split

__all__ = ["TABLE", "Blocks", "Tuned", "tuned"]


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
    (16, False): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3)),
    (16, True): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3)),
    (32, False): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3)),
    (32, True): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3)),
    (48, False): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3)),
    (48, True): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3)),
    (64, False): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3)),
    (64, True): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3)),
    (80, False): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 2)),
    (80, True): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 2)),
    (96, False): Tuned(Blocks(128, 64, 8, 3), Blocks(128, 64, 8, 2), Blocks(64, 128, 8, 2)),
    (96, True): Tuned(Blocks(128, 64, 8, 3), Blocks(128, 64, 8, 2), Blocks(64, 128, 8, 2)),
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
