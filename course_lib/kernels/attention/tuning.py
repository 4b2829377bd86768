"""Which kernel runs and which blocks it works in: tables, keyed by the columns that are computed and by causal.

Kernels stand on two rungs. Both take and leave the same tensors, so that every call may choose anew.

    1  forward.py, backward.py             any shape, stride, type and device: what the lesson teaches. TABLE
    2  groups_forward.py, groups_dkdv.py   an H100 or H200, rows in reach of the copy engine, and an entry in GROUPS:
                                           the shapes where the hand-made schedule was measured faster

Each entry is the fastest of 9 to 22 that `python -m benchmarks.attention_sweep` tried on an H200: on 4 x 16 heads of
4096, and for (80, False) on 256 x 16 heads of 256 and head size 72. benchmarks/notes/attention.md has the figures.
"""

from dataclasses import dataclass

import torch

from course_lib.kernels.attention.rows import aligned
from course_lib.kernels.columns import split
from course_lib.kernels.hardware import HOPPER, capability, gluon_is_known

__all__ = ["GROUPS", "SPILL_LIMIT", "TABLE", "Blocks", "Groups", "Tuned", "blocks_for", "groups_for", "tuned"]

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
    """For the kernels with jobs for their warps, where two groups of warps hold 64 rows each."""

    block: int  # rows that one turn of the loop walks over: keys forward, queries for dk and dv
    stages: int  # such blocks in shared memory or on their way there
    held: int = 1  # 2: the rows of the next tile are on their way while this one's are in use
    persistent: bool = True  # as many programs as multiprocessors, each with many tiles; else a program a tile
    heads_interleaved: int = 1  # causal: the longest tiles of so many heads come before their shorter ones
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
    ("forward", 80, True): Groups(128, 3, persistent=False, heads_interleaved=8),
    ("forward", 128, False): Groups(128, 2, held=2),
    ("forward", 128, True): Groups(128, 2, persistent=False, heads_interleaved=8),
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


def groups_for(kernel: str, causal: bool, padded: bool, capability, *tensors: torch.Tensor) -> Groups | None:
    """The second rung's blocks for "forward" or "dkdv", or None where that rung is not valid or not faster.

    `tensors`: all that the copy engine is to fetch or to write, q first; `padded`: k_lengths are given; `capability`:
    of the device.
    """
    entry = GROUPS.get((kernel, sum(split(tensors[0].shape[-1])), causal))
    if entry is None or capability != HOPPER or padded or not all(map(aligned, tensors)) or not gluon_is_known():
        return None
    return entry


def blocks_for(kernel: str, causal: bool, k_lengths, *tensors: torch.Tensor) -> Blocks | Groups:
    """What to launch "forward" or "dkdv" with. Its type says which rung: Blocks the first, Groups the second."""
    q = tensors[0]
    groups = groups_for(kernel, causal, k_lengths is not None, capability(q.device), *tensors)
    return groups or getattr(tuned(q.shape[-1], causal, q.dtype, q.device), kernel)
