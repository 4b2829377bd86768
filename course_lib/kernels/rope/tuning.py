"""Which block of positions and heads a program turns.

Chosen by what the compiler makes of it and by the softmax's experience (a program of 8 KB, and many of them, is within
3 % of a copy); not yet run on a GPU. `python -m benchmarks.rope_sweep` tries others.
"""

from dataclasses import dataclass

import torch
import triton

__all__ = ["ELEMENTS", "HEADS", "INTERPRETED", "Blocks", "blocks_for"]


@dataclass(frozen=True)
class Blocks:
    positions: int
    q_heads: int
    k_heads: int
    warps: int


# Elements of one tensor a program. 4 warps then have 4 accesses of 16 bytes a thread in flight, and 10 programs fit a
# multiprocessor: 80 KB in flight, where 4.2 TB/s times 0.7 us of latency over 132 multiprocessors is 22 KB.
ELEMENTS = 4096
# Heads a program where heads lie far apart and positions side by side (B, H, S, D in memory): each reads its block of
# the tables anew, so 4 heads bring a quarter of a byte from the cache for each byte of q and k.
HEADS = 4
INTERPRETED = Blocks(positions=2, q_heads=2, k_heads=2, warps=4)  # so small that short inputs have several, part-filled


def blocks_for(q_heads: int, k_heads: int, rotary_size: int, heads_inside: bool, device: torch.device) -> Blocks:
    if device.type != "cuda":
        return INTERPRETED
    rows = max(1, ELEMENTS // triton.next_power_of_2(rotary_size))
    most = rows if heads_inside else HEADS
    block_q, block_k = (min(most, triton.next_power_of_2(max(1, heads))) for heads in (q_heads, k_heads))
    return Blocks(max(1, rows // max(block_q, block_k)), block_q, block_k, warps=4)
