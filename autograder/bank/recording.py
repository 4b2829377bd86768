"""What is kept of a run of the bank: a section a unit, `bank.flash`, `bank_speed.flash` or `bank_cheats.flash`.

A unit at a time, because all of them take longer than one would wait, and because a change of one unit's exercises says
nothing about another's outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter

from autograder.bank import BANK
from course_lib.results import ROOT, file_hash, save

__all__ = ["keep", "measured", "unit_of"]


def unit_of(exercise: str) -> str:
    return exercise.partition(".")[0]


def measured(unit: str, *more: str) -> list[str]:
    """The files that a recorded outcome depends on: the unit's exercises, what all share, what was judged, and `more`,
    whole folders."""
    exercises = ROOT / "autograder" / "exercises"
    files = [*exercises.glob("layout.py"), *exercises.glob(f"{unit}.py"), *(exercises / unit).rglob("*.py")]
    files += [path for folder in ("autograder/judging", *more) for path in (ROOT / folder).rglob("*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in [*files, *BANK.glob(f"{unit}.*/*/*.py")])


def keep(part: str, rows: Iterable[Mapping], device_slug: str, *more: str) -> None:
    """`rows`, with an "exercise" each, of whole units."""
    in_order = sorted(rows, key=itemgetter("exercise"))
    for name, here in groupby(in_order, key=lambda row: unit_of(row["exercise"])):
        save(f"{part}.{name}", list(here), device_slug, {path: file_hash(path) for path in measured(name, *more)})
