"""The roofline: how long a piece of work must take on a machine that does nothing wrong.

Three things can limit a kernel that is launched again and again: the host that launches it, the bytes it
moves, the arithmetic it does. The three overlap, so the floor is the largest of them, not their sum.
Everything here is arithmetic on numbers that the caller measured; nothing is measured here.
"""

from dataclasses import dataclass
from math import inf

__all__ = ["Roof", "Work", "attainable", "floor_s", "regime", "ridge", "terms_s"]


@dataclass(frozen=True)
class Work:
    """What has to be done. Work adds up: `a + b` is both, `3 * a` is three times a."""

    flops: float  # floating-point operations; a fused multiply-add counts as two
    bytes: float  # bytes read from and written to device memory, each once

    def __post_init__(self):
        if not (self.flops >= 0 and self.bytes >= 0):
            raise ValueError(f"work cannot be negative: {self.flops} FLOPs, {self.bytes} bytes")

    @property
    def intensity(self) -> float:
        """FLOPs a byte; infinite where arithmetic needs no memory, 0 for no work at all."""
        if self.bytes == 0:
            return inf if self.flops > 0 else 0.0
        return self.flops / self.bytes

    def __add__(self, other: "Work") -> "Work":
        if not isinstance(other, Work):
            return NotImplemented
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def __radd__(self, other) -> "Work":
        # sum() starts at the number 0
        return self if other == 0 else NotImplemented

    def __mul__(self, times: float) -> "Work":
        return Work(self.flops * times, self.bytes * times)

    __rmul__ = __mul__


@dataclass(frozen=True)
class Roof:
    """What one machine can do at best, for one kind of arithmetic."""

    name: str
    flops_per_s: float
    bytes_per_s: float
    launch_s: float = 0.0  # host time of one launch; 0 leaves overhead out of the floor

    def __post_init__(self):
        if not (self.flops_per_s > 0 and self.bytes_per_s > 0 and self.launch_s >= 0):
            raise ValueError(f"a roof needs positive rates and a launch cost of at least 0: {self}")


def terms_s(work: Work, roof: Roof) -> dict[str, float]:
    """Seconds that each of the three limits asks for; the largest is the floor."""
    return {
        "overhead": roof.launch_s,
        "bandwidth": work.bytes / roof.bytes_per_s,
        "compute": work.flops / roof.flops_per_s,
    }


def floor_s(work: Work, roof: Roof) -> float:
    """Least seconds a call, as one of many calls in a queue (a single call waits for its launch as well)."""
    return max(terms_s(work, roof).values())


def regime(work: Work, roof: Roof) -> str:
    """Which term sets the floor: "overhead", "bandwidth" or "compute" (exactly at the ridge: "compute")."""
    terms = terms_s(work, roof)
    floor = max(terms.values())
    if floor == 0:  # no work and no launch cost: there is only the calling left
        return "overhead"
    return next(name for name in ("compute", "bandwidth", "overhead") if terms[name] == floor)


def ridge(roof: Roof) -> float:
    """Intensity (FLOPs a byte) where bandwidth stops being the limit and arithmetic starts."""
    return roof.flops_per_s / roof.bytes_per_s


def attainable(intensity: float, roof: Roof) -> float:
    """FLOPs a second that the roof allows at this intensity, launches left out."""
    return min(roof.flops_per_s, intensity * roof.bytes_per_s)
