"""A prediction, made before the measurement, beside what came.

A prediction is a dictionary: name -> a number or a word, None while nobody has said anything. Its entry "why" is the
reason, and is printed below the comparison. `Log` keeps what was predicted and what came over a whole lesson.
"""

import math
import textwrap
from collections.abc import Mapping
from statistics import median
from typing import Any

from course_lib.table import Table, Tabular, number_text

__all__ = ["WHY", "Log", "against"]

WHY = "why"
WIDTH = 88  # of a printed line: a notebook's column


def against(predicted: Mapping[str, Any], came: Mapping[str, Any], unit: str = "", digits: int = 3) -> None:
    """Print what came for every name that was to be predicted, what was predicted, and the reason that was given."""
    unit = f" {unit}" if unit else ""
    for name, guess in predicted.items():
        if name != WHY:
            print(f"{name}: {_shown(came[name], digits)}{unit}; {_said(guess, came[name], digits)}")
    if predicted.get(WHY):
        print(textwrap.fill(f"The reason given: {predicted[WHY]}", WIDTH))


class Log(Tabular):
    """An engineering log: a row for each thing that was predicted, in order, and a decision for each step.

    A step that is noted again, because its cell ran again, replaces its rows.
    """

    def __init__(self):
        self._steps: dict[str, list[tuple]] = {}
        self._decisions: dict[str, str | None] = {}

    def note(self, step: str, predicted: Mapping[str, Any], came: Mapping[str, Any]) -> None:
        """What was predicted of a step, by name, and what came; what has not come, as on a machine without a GPU, is
        left open.
        """
        names = [name for name in predicted if name != WHY]
        self._steps[step] = [(name, predicted[name], came.get(name)) for name in names]

    def decide(self, decisions: Mapping[str, str | None]) -> None:
        """step -> what was decided, and why."""
        if unknown := [step for step in decisions if step not in self._steps]:
            raise KeyError(f"nothing was noted of {unknown[0]!r}; there are {', '.join(self._steps)}")
        self._decisions |= decisions

    def table(self) -> Table:
        rows = []
        for step, noted in self._steps.items():
            decided = self._decisions.get(step) or "nothing yet"
            for i, (name, guess, came) in enumerate(noted):
                words = [f"{step}: {name}", *("-" if one is None else number_text(one) for one in (guess, came))]
                rows.append([*words, "" if i else decided])
        return Table(("step", "predicted", "came", "decision"), rows, note=self._off())

    def _off(self) -> str:
        """By which factor numbers were off, in the middle and at most."""
        all_of = [(guess, came) for noted in self._steps.values() for _, guess, came in noted]
        pairs = [(g, c) for g, c in all_of if _is_number(g) and _is_number(c) and g > 0 and c > 0]
        if not pairs:
            return "no number was predicted that has come"
        off = [max(g / c, c / g) for g, c in pairs]
        return (
            f"{len(off)} numbers predicted that have come; off by a factor of {median(off):.2g} in the middle, "
            f"{max(off):.2g} at most"
        )


def _said(guess: Any, came: Any, digits: int) -> str:
    if guess is None:
        return "no prediction"
    said = f"predicted {_shown(guess, digits)}"
    if _is_number(guess) and _is_number(came) and came:
        said += f", {guess / came:.2f} times that"
    return said


def _shown(value: Any, digits: int) -> str:
    return f"{value:.{digits}g}" if _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
