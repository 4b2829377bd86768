"""What one call of a submission left behind. No judgement: this is all that leaves the side that ran the code."""

from dataclasses import dataclass, field
from typing import Any

NOT_WRITTEN = "not written yet"  # what every stub of a released lesson says
LOST = "Lost"  # the error of a call whose process, or whose ranks, ended or were ended
NOT_TRIED = "NotTried"  # the error of a call that was never made, because of what became of one before it

FOUND = "Found"  # the error of a call that ended well, and broke a rule that a probe looks at

# After one of these a CUDA process has lost its device: every later call fails, whatever it does.
FAULTS = ("illegal memory access", "misaligned address", "device-side assert", "launch failure", "illegal instruction")


@dataclass(frozen=True)
class Damage:
    """Elements written where nothing may be written."""

    before: int
    gaps: int
    after: int
    nan: bool  # every stray value is NaN, as if it had been computed from beyond an input

    @property
    def total(self) -> int:
        return self.before + self.gaps + self.after


@dataclass(frozen=True)
class Outcome:
    outputs: dict[str, Any] = field(default_factory=dict)  # output name -> tensor or plain data
    error: str | None = None  # "TypeName: message" when the call raised
    where: str | None = None  # the line of the submission that raised
    damage: dict[str, Damage] = field(default_factory=dict)  # argument -> writes outside it
    changed: dict[str, int] = field(default_factory=dict)  # input -> elements that changed
    unwritten: dict[str, int] = field(default_factory=dict)  # output -> elements never written
    launches: int = 0  # Triton kernels launched
    made: int = 0  # numbers in memory that it made beside its arguments
    multiplied: int = 0  # multiplications in products of torch
    moved: int = 0  # tensors that it made, copied or filled beside its kernels
    cast: int = 0  # those of them that got another type
    seconds: float = 0.0
    seen: dict | None = None  # what a profiler saw of the call, where one looked on

    @property
    def not_written(self) -> bool:
        """Whether it says so. The words may be a submission's own, so no points hang on them."""
        return self.error is not None and NOT_WRITTEN in self.error

    @property
    def fault(self) -> bool:
        """Whether the device no longer answers the process that made this call."""
        return self.error is not None and any(words in self.error for words in FAULTS)

    @property
    def lost(self) -> bool:
        return self.error is not None and self.error.startswith(f"{LOST}: ")

    @property
    def found(self) -> bool:
        return self.error is not None and self.error.startswith(f"{FOUND}: ")

    @property
    def silent(self) -> bool:
        """Whether the call left nothing behind that could tell one mistake from another."""
        return self.fault or (self.error is not None and self.error.startswith((NOT_TRIED, LOST)))
