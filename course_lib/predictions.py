"""A prediction, made before the measurement, beside what came.

A prediction is a dictionary: name -> a number or a word, None while nobody has said anything. Its entry "why" is the
reason, and is printed below the comparison.
"""

import math
import textwrap
from collections.abc import Mapping
from typing import Any

__all__ = ["WHY", "against"]

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
