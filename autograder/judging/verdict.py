"""What judging says: plain frozen data, for reports, grade cells and verdict files alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from course_lib.numerics import Error

SAID = 800  # characters of one sentence: what a submission chose may stand in it
FOR_SPEED = ", speed"  # follows the name of an exercise where its points for speed are meant
TIERS = {"interpreter": "the CPU (Triton kernels through its interpreter)", "gpu": "the GPU"}  # in words


def brief(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} ... ({len(text):,} characters)"


@dataclass(frozen=True)
class Asked:
    """What a check cell asks for; as text, what people call it."""

    name: str
    speed: bool

    def __str__(self) -> str:
        return f"{self.name}{FOR_SPEED}" if self.speed else self.name


def for_speed(called: str) -> bool:
    return called.endswith(FOR_SPEED)


@dataclass(frozen=True)
class CaseVerdict:
    name: str
    sizes: str
    right: bool
    why: str = ""  # one sentence when wrong
    errors: dict[str, Error] = field(default_factory=dict)  # output -> error
    picture: Picture | None = None
    fine: tuple[str, ...] = ()  # when wrong: the outputs that are right
    expected: str = ""  # for the instructor alone: the wrong answer beside the truth, and a scenario


def told_apart(cases: Sequence[CaseVerdict]) -> tuple[dict[str, bool], dict[str, tuple[str, ...]]]:
    """Which cases are right, and which outputs of the others."""
    return {case.name: case.right for case in cases}, {case.name: case.fine for case in cases if not case.right}


@dataclass(frozen=True)
class Picture:
    """What an error map draws: |error| / limit for each element of one output, never the values themselves."""

    output: str
    over_limit: torch.Tensor  # error over limit; NaN where never written


@dataclass(frozen=True)
class Diagnosis:
    mistake: str | None  # the name of a known mistake
    says: str  # what to look at next
    pattern: str = ""  # where the wrong elements lie, in words


@dataclass(frozen=True)
class Verdict:
    exercise: str
    tier: str
    seed: int | str  # that repeats the draw; the referee tells only its hash
    points: float
    out_of: float
    cases: tuple[CaseVerdict, ...]
    diagnosis: Diagnosis | None = None
    limits: tuple[str, ...] = ()
    shows_not: str = ""
    note: str = ""  # why there is no or less credit although cases may be right
    pending: bool = False  # nothing could be judged on this tier: a person or a GPU decides
    held: float = 0.0  # points that wait for a person, for the reasons in `note`
    endless: tuple[str, ...] = ()  # sentences on cells that waited or went on for ever; they cost nothing by themselves

    def __post_init__(self):
        object.__setattr__(self, "note", brief(self.note, 5 * SAID))

    @property
    def right(self) -> int:
        return sum(case.right for case in self.cases)

    @property
    def accepted(self) -> bool:
        return bool(self.cases) and self.right == len(self.cases) and not self.note

    @property
    def headline(self) -> str:
        if self.pending:
            return f"{self.exercise}: {self.note}" if self.held else f"{self.exercise}: waiting for a GPU. {self.note}"
        if not self.cases:
            return f"{self.exercise}: {self.note or 'no case ran'}"
        return f"{self.exercise}: {self.right} of {len(self.cases)} cases right."


@dataclass(frozen=True)
class Timed:
    """One timed size."""

    sizes: str
    seconds: float
    low_s: float
    high_s: float
    floor_s: float
    reference_s: float | None = None

    @property
    def share(self) -> float:
        """Share of the floor; or of the reference's speed where that is kinder to the submission."""
        of_reference = self.reference_s / self.seconds if self.reference_s else 0.0
        return max(self.floor_s / self.seconds, of_reference)


@dataclass(frozen=True)
class SpeedVerdict:
    exercise: str
    tier: str
    points: float
    out_of: float
    rows: tuple[Timed, ...] = ()
    full: float = 0.9
    none: float = 0.3
    note: str = ""
    pending: bool = False

    def __post_init__(self):
        object.__setattr__(self, "note", brief(self.note, 5 * SAID))
