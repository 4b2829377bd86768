"""What stands behind a notebook's `check("start.axpy", axpy)`: it answers at once, in this process.

The answer's text form is the bare number of points, so that stock nbgrader records partial credit; its HTML form is
the report. Grading for marks does not trust this process: that is the referee's work.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from autograder import exercise as exercises
from autograder.call.in_process import examine, examine_speed
from autograder.classroom import demonstrated, report
from autograder.inside.calling import quiet
from autograder.judging.verdict import SpeedVerdict, Verdict

__all__ = ["Score", "check", "check_speed"]


@dataclass(frozen=True, repr=False)
class Score:
    """Points, shown as a report in a notebook and as the bare number in text."""

    points: float
    verdict: Verdict | SpeedVerdict

    def __repr__(self) -> str:
        return f"{self.points:g}"

    def __float__(self) -> float:
        return self.points

    def _repr_html_(self) -> str:
        show = report.html if isinstance(self.verdict, Verdict) else report.speed_html
        with quiet():
            return show(self.verdict)

    def explain(self) -> str:
        """The report as text, for a console."""
        show = report.lines if isinstance(self.verdict, Verdict) else report.speed_lines
        return "\n".join(show(self.verdict))


def check(name: str, function: Callable, seed: int | None = None) -> Score:
    """Try `function` on the live cases of an exercise, with inputs drawn afresh; `seed` repeats an earlier draw.

    Sizes are other ones each time too, so that a kernel meets many; grading asks everybody for the same.
    """
    exercise = replace(exercises.get(name), alike=False)
    with demonstrated.withheld(function) as missing:
        verdict = examine(exercise, function, _new_seed() if seed is None else seed, live=True)
    met = {one for one in missing for case in verdict.cases if re.search(rf"\b{one}\b.*is not defined", case.why)}
    if exercise.entry in missing and getattr(function, "__name__", "") == exercise.entry:
        verdict, met = replace(verdict, points=0.0), {exercise.entry}
    if met:
        note = " ".join(["In grading:", *map(demonstrated.said_of, sorted(met)), verdict.note])
        verdict = replace(verdict, note=note.strip())
    return Score(verdict.points, verdict)


def check_speed(name: str, function: Callable, seed: int | None = None) -> Score:
    """Time `function` against the floor of this GPU; without a GPU the points stay pending."""
    exercise = exercises.get(name)
    with demonstrated.withheld(function):
        verdict = examine_speed(exercise, function, _new_seed() if seed is None else seed)
    return Score(verdict.points, verdict)


def _new_seed() -> int:
    return int.from_bytes(os.urandom(4), "little")
