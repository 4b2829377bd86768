"""How many rows a program takes, and with how many warps.

Measured on an H200 with candidates of `python -m benchmarks.add_norm_sweep` (benchmarks/notes/add_norm.md): both
directions at 1152, 4096, 12288 and 16384 columns of 16-bit types. The other entries are chosen by what the compiler
makes of them. Elsewhere a backward program holds as many turns in shared memory as there is room for, and a
multiprocessor as many programs as fit side by side.
"""

import functools
from dataclasses import dataclass, replace

import torch
import triton

from course_lib.kernels.columns import split
from course_lib.kernels.fitting import Need, fits, residents
from course_lib.kernels.hardware import Limits, limits

__all__ = [
    "BACKWARD",
    "BACKWARD_FP32",
    "FORWARD",
    "MAX_WIDTH",
    "Backward",
    "Forward",
    "backward_rows",
    "forward_rows",
    "parts_of",
    "registers_of",
]

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
    ahead: bool = False  # the next turn's rows are fetched while this one's are worked on, into registers
    stages: int = 1  # of turns whose rows are in shared memory or on their way there
    again: bool = False  # rows and weights become fp32 twice, and wait for the row's sums in their own type
    halved: bool = False  # two programs sum the same row, and each makes the gradients of one half of its columns


# Lanes that a row takes, at most -> rows and warps. Of rows with less than 1024 lanes a program takes several.
FORWARD = {
    1024: Forward(1, 2),
    2048: Forward(1, 2),
    4096: Forward(1, 8),
    8192: Forward(1, 16),
    12288: Forward(1, 8),
    16384: Forward(1, 32),
}
# As many programs as fit on a multiprocessor at once: a program that had to wait for another to end would walk over its
# rows when the device is nearly empty.
BACKWARD = {
    1024: Backward(1, 2, 7, stages=3),
    1152: Backward(1, 2, 7, stages=3),
    1536: Backward(1, 4, 4, ahead=True),
    2048: Backward(1, 4, 3, ahead=True),
    4096: Backward(1, 16, 1, stages=4),
    8192: Backward(1, 16, 1),
    12288: Backward(1, 16, 1, stages=2, again=True),  # 453 us; without `again` 562
    16384: Backward(1, 16, 1, stages=3, halved=True),  # 505 us; not halved it spills, and takes 1154
}
# fp32 rows wait as wide as they are worked on: `again` saves no register. Not measured.
BACKWARD_FP32 = BACKWARD | {12288: Backward(1, 32, 1, stages=2), 16384: Backward(1, 16, 1, stages=2, halved=True)}
SMALLEST = 1024
# The interpreter gets few rows a program, so that few rows are several programs, and these several turns.
INTERPRETED = Forward(2, 4), Backward(1, 4, 1, ahead=True)


def parts_of(width: int, rows: int, halved: bool = False) -> tuple[int, int]:
    """Columns of the two parts of a row: 1152 -> (1024, 128), 4096 -> (4096, 0); one part where rows are several.

    Halves where two programs share the row: 12289 -> (8192, 8192).
    """
    if halved:
        half = max(16, triton.next_power_of_2(width) // 2)
        return half, half
    return split(width) if rows == 1 else (max(16, triton.next_power_of_2(width)), 0)


def _entry(table: dict, width: int):
    """The entry for one row of this width, and how many rows of it make a block of 1024 lanes."""
    lanes = sum(parts_of(width, 1))
    rows = max(1, SMALLEST // max(16, triton.next_power_of_2(width)))
    return table[min(key for key in table if key >= lanes)], rows


def forward_rows(width: int, device: torch.device) -> Forward:
    if device.type != "cuda":
        return INTERPRETED[0]
    entry, more = _entry(FORWARD, width)
    return Forward(entry.rows * more, entry.warps)


def backward_rows(
    width: int, n_rows: int, device: torch.device, itemsize: int = 2, weight_itemsize: int = 2
) -> Backward:
    """`itemsize`: bytes of the widest of the three numbers of a row that are read for each column."""
    if device.type != "cuda":
        return INTERPRETED[1]
    most = 1 << max(0, n_rows - 1).bit_length()  # triton.next_power_of_2 takes the host 10 us
    how, has = _tabled(width, most, itemsize), limits(device)
    return how if has.measured and itemsize == 2 else _fitted(how, width, itemsize, weight_itemsize, has)


@functools.lru_cache(1024)
def _tabled(width: int, most_rows: int, itemsize: int) -> Backward:
    entry, more = _entry(BACKWARD if itemsize == 2 else BACKWARD_FP32, width)
    return replace(entry, rows=min(entry.rows * more, most_rows))


@functools.lru_cache(1024)
def _fitted(how: Backward, width: int, itemsize: int, weight_itemsize: int, has: Limits) -> Backward:
    """Fewer turns in shared memory, then fewer programs: until they fit."""
    for stages in range(how.stages, 0, -1):
        need = need_of(replace(how, stages=stages), width, itemsize, weight_itemsize)
        if fits(need, has):
            return replace(how, stages=stages, programs=min(how.programs, residents(need, has)))
    raise AssertionError(f"{width} columns of {itemsize} B do not fit into {has.shared_bytes} B")


def need_of(how: Backward, width: int, itemsize: int, weight_itemsize: int) -> Need:
    """dy, ds and s of a turn wait in shared memory for the turns before; without that one row changes hands there.

    Weights that are read twice a turn wait there twice.
    """
    lanes = how.rows * sum(parts_of(width, how.rows, how.halved))
    kept = lanes // (1 + how.halved)  # ds, and weights the second time
    turn = (2 * lanes + kept) * itemsize + (lanes + kept) * weight_itemsize * how.again
    waiting = (how.stages - 1) * turn + 512 * (how.stages > 1)
    return Need(max(waiting, lanes * itemsize), registers_of(how), how.warps, how.stages, 1.0)


def registers_of(how: Backward) -> int:
    """At most so many a thread, for all its programs to be on a multiprocessor at once."""
    return min(255, 65536 // (32 * how.warps * how.programs) // 8 * 8)
