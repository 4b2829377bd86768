"""Which blocks a device gets that the tables were not measured on: those that fit, in the order of a small model.

What a kernel needs is estimated from its blocks; tests compile every choice and hold the estimates to what the compiler
says. The model multiplies four shares of the highest rate, each 1 where nothing is waited for:

    programs   p / (p + idle)     of p resident programs, some have work while others wait; 8 warps count 1.4 times
    reuse      i / (i + 32)       i FLOP for each byte that a program fetches: what is left of a turn when it has come
    stages     .6, .78, 1         of 1, 2 and more: how far loads run ahead of what uses them
    registers  (255 / r)^2        where r registers a thread are asked for and 255 are there: the rest spills

The numbers were fitted to lesson 04's settings and to the tiles of a matrix product, on an H200.
benchmarks/notes/cards.md says how far its choices are from the best of the H200's sweeps.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from course_lib.kernels.hardware import Limits

__all__ = ["Need", "best", "fits", "rate", "residents"]

MOST_REGISTERS = 255  # a thread
MOST_WARPS = 32  # a program
RESERVED_BYTES = 1024  # of shared memory, which the system takes for every program
STAGES = {1: 0.6, 2: 0.78}


@dataclass(frozen=True)
class Need:
    """Of one program."""

    shared_bytes: int
    registers: int  # a thread
    warps: int
    stages: int  # loads that are in shared memory or on their way there
    reuse: float  # FLOP for each byte that is fetched
    idle: float = 0.5  # of a turn, when the tensor cores wait for something else than the next product


def fits(need: Need, limits: Limits) -> bool:
    """Does a program with this need start? Registers never forbid it: those that are not there spill."""
    return need.shared_bytes <= limits.shared_bytes and need.warps <= min(MOST_WARPS, limits.warps)


def residents(need: Need, limits: Limits) -> int:
    """Programs that a multiprocessor holds at once."""
    registers = 32 * need.warps * min(MOST_REGISTERS, need.registers)
    shared = limits.shared_bytes_in_all // (need.shared_bytes + RESERVED_BYTES)
    return max(1, min(shared, limits.registers // registers, limits.warps // need.warps))


def rate(need: Need, limits: Limits) -> float:
    """A share of the highest rate, to compare blocks of one kernel."""
    programs = residents(need, limits) * (need.warps / 4) ** 0.5
    spills = min(1.0, MOST_REGISTERS / need.registers) ** 2
    return programs / (programs + need.idle) * need.reuse / (need.reuse + 32) * STAGES.get(need.stages, 1.0) * spills


def best(candidates: Iterable, need_of: Callable[..., Need], limits: Limits):
    """The fastest by the model of those that fit, the first of equals; where none fits, the smallest."""
    needs = {one: need_of(one) for one in candidates}
    fitting = {one: need for one, need in needs.items() if fits(need, limits)}
    if not fitting:
        return min(needs, key=lambda one: needs[one].shared_bytes)
    return max(fitting, key=lambda one: rate(fitting[one], limits))
