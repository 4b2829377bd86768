"""How many rows a program takes, and with how many warps.

Chosen by what the compiler makes of it and by the softmax's experience (a thousand short programs keep enough loads in
flight); not yet run on a GPU. `python -m benchmarks.add_norm_sweep` tries others.
"""

from dataclasses import dataclass

import torch
import triton

from course_lib.kernels.attention.parts import split

__all__ = ["BACKWARD", "FORWARD", "MAX_WIDTH", "Backward", "Forward", "backward_rows", "forward_rows", "parts_of"]

MAX_WIDTH = 16384  # a row lies in the registers of one program


@dataclass(frozen=True)
class Forward:
    rows: int  # a program
    warps: int


@dataclass(frozen=True)
class Backward:
    rows: int  # a program and turn
    warps: int
    programs: int  # a multiprocessor
    ahead: bool = False  # the next turn's rows are fetched while this one's are worked on


# Columns of a row, rounded up to a power of two -> rows and warps. Less than 1024 columns: as many rows more.
FORWARD = {
    1024: Forward(1, 2),
    2048: Forward(1, 2),
    4096: Forward(1, 8),
    8192: Forward(1, 16),
    16384: Forward(1, 32),
}
BACKWARD = {
    1024: Backward(1, 4, 5, ahead=True),
    2048: Backward(1, 4, 5, ahead=True),
    4096: Backward(1, 8, 2),
    8192: Backward(1, 16, 1),
    16384: Backward(1, 32, 1),
}
SMALLEST = min(FORWARD)


def parts_of(width: int, rows: int) -> tuple[int, int]:
    """Columns of the two parts of a row: 1152 -> (1024, 128), 4096 -> (4096, 0); one part where rows are several."""
    return split(width) if rows == 1 else (_columns(width), 0)


def _columns(width: int) -> int:
    return max(16, triton.next_power_of_2(width))


def forward_rows(width: int, device: torch.device) -> Forward:
    if device.type != "cuda":
        return INTERPRETED[0]
    columns = _columns(width)
    entry = FORWARD[max(SMALLEST, columns)]
    return Forward(entry.rows * max(1, SMALLEST // columns), entry.warps)


def backward_rows(width: int, n_rows: int, device: torch.device) -> Backward:
    if device.type != "cuda":
        return INTERPRETED[1]
    columns = _columns(width)
    entry = BACKWARD[max(SMALLEST, columns)]
    rows = min(entry.rows * max(1, SMALLEST // columns), triton.next_power_of_2(max(1, n_rows)))
    return Backward(rows, entry.warps, entry.programs, entry.ahead)


# The interpreter gets few rows a program, so that few rows are several programs, and these several turns.
INTERPRETED = Forward(2, 4), Backward(1, 4, 1, ahead=True)
