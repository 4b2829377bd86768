"""What is kept of a run of the bank: a section an exercise, `bank.flash.merge`, `bank_speed.flash.speed` and so on.

An exercise at a time, because all of them take longer than one would wait, and because a change of one says nothing
about the outcome of another.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter

from autograder.bank import BANK
from course_lib.results import ROOT, file_hash, load, save

__all__ = ["keep", "keep_apart", "kept", "measured"]


def measured(exercise: str, *more: str) -> list[str]:
    """The files that a recorded outcome depends on: the unit's exercises, what all share, what was judged, and `more`,
    whole folders."""
    unit, folder = exercise.partition(".")[0], ROOT / "autograder" / "exercises"
    files = [*folder.glob("layout.py"), *folder.glob(f"{unit}.py"), *(folder / unit).rglob("*.py")]
    files += [path for folder in ("autograder/judging", *more) for path in (ROOT / folder).rglob("*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in [*files, *BANK.glob(f"{exercise}/*/*.py")])


def keep(part: str, rows: Iterable[Mapping], device_slug: str, *more: str) -> None:
    """`rows`, each with its "exercise": all that there are of an exercise."""
    for name, here in groupby(sorted(rows, key=itemgetter("exercise")), key=itemgetter("exercise")):
        save(f"{part}.{name}", list(here), device_slug, {path: file_hash(path) for path in measured(name, *more)})


def keep_apart(part: str, rows: Iterable[Mapping], device_slug: str, *more: str) -> None:
    """The same from a process of its own: naming the machine starts CUDA, and nobody who has it can fork more."""
    child = multiprocessing.get_context("fork").Process(target=keep, args=(part, list(rows), device_slug, *more))
    child.start()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"the outcome of {part} could not be kept")


def kept(part: str, exercise: str, device_slug: str = "h200") -> list[dict]:
    """The recorded rows of one exercise; none when it was not run there."""
    section = load(f"{part}.{exercise}", device_slug)
    return section["rows"] if section else []
