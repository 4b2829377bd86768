"""Which block of positions and heads a program turns.

Measured on an H200: programs of 2 to 8 KB are within 1 % of each other, and of a copy; 16 KB and 4 warps, as large as a
row softmax likes them, are 4.6 % slower. `python -m benchmarks.rope_sweep` tries others.
"""

from dataclasses import dataclass

import torch
import triton

__all__ = ["INTERPRETED", "Blocks", "blocks_for"]


@dataclass(frozen=True)
class Blocks:
    positions: int
    q_heads: int
    k_heads: int
    warps: int


WARPS = 2
# Elements of one tensor a program, where heads lie side by side (B, S, H, D in memory) and where positions do.
ELEMENTS = {True: 1024, False: 2048}
# Heads a program where positions lie side by side: each reads its block of the tables anew.
HEADS = 2
INTERPRETED = Blocks(positions=2, q_heads=2, k_heads=2, warps=4)  # so small that short inputs have several, part-filled


def blocks_for(q_heads: int, k_heads: int, rotary_size: int, heads_inside: bool, device: torch.device) -> Blocks:
    if device.type != "cuda":
        return INTERPRETED
    rows = max(1, ELEMENTS[heads_inside] // triton.next_power_of_2(rotary_size))
    most = rows if heads_inside else HEADS
    block_q, block_k = (min(most, triton.next_power_of_2(max(1, heads))) for heads in (q_heads, k_heads))
    return Blocks(max(1, rows // max(block_q, block_k)), block_q, block_k, WARPS)
