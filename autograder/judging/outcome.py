"""What one call of a submission left behind. No judgement: this is all that leaves the side that ran the code."""

from dataclasses import dataclass, field
from typing import Any

NOT_WRITTEN = "not written yet"  # what every stub of a released lesson says


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
    seconds: float = 0.0

    @property
    def not_written(self) -> bool:
        return self.error is not None and NOT_WRITTEN in self.error
