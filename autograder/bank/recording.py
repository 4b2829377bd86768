"""What is kept of a run of the bank: a section an exercise, `bank.flash.merge`, `bank_speed.flash.speed` and so on.

An exercise at a time, because all of them take longer than one would wait, and because a change of one says nothing
about the outcome of another.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path

from autograder.bank import entries
from autograder.exercise import Exercise, get
from course_lib.meaning import meaning, reached
from course_lib.results import ROOT, gpus, load, save

__all__ = ["PARTS", "command", "keep", "keep_apart", "kept", "means"]

# part of the bank -> the kinds of submissions that are judged, and how it is run again
PARTS = {
    "bank": (("right", "slow", "mistakes"), ""),
    "bank_nccl": (("right", "slow", "mistakes"), " --nccl"),
    "bank_speed": (("right", "slow"), " --speed"),
    "bank_cheats": (("cheats",), " --cheats"),
    "bank_seeds": (("right", "slow", "mistakes"), " --seeds 100"),
}
# Cheats are about the referee. Everything else is judged by what `make test` tries without a GPU too.
REFEREE = ("autograder/referee", "autograder/inside", "autograder/judging")


def means(part: str, name: str) -> str:
    """Whether a recorded outcome still holds: it does while the exercise and the submissions mean what they meant."""
    submissions = [entry.source for entry in entries([name], PARTS[part][0])]
    files = [path for folder in REFEREE for path in (ROOT / folder).rglob("*.py")] if part == "bank_cheats" else []
    if part == "bank_seeds":  # how its cases are drawn is what was judged
        files = sorted(_drawn_in(get(name)))
    return meaning(files, submissions, facts=[repr(_facts(get(name)))])


def _drawn_in(exercise: Exercise) -> set[Path]:
    """The files that draw its cases, and those of exercises and probes that they import."""
    found: set[Path] = set()
    for case in exercise.cases:
        draw = case.draw
        while not hasattr(draw, "__code__"):  # of a Telling, or of a partial
            draw = draw.draw if hasattr(draw, "draw") else draw.func
        found.add(Path(draw.__code__.co_filename))
    return found.union(*(reached(path, ("autograder/exercises", "autograder/inside/probes")) for path in found))


def _facts(exercise: Exercise) -> list:
    """Cases, limits, mistakes and points of an exercise, as plain data."""
    plain = "name entry points kind writes returns hides tiers launches allowed deterministic".split()
    facts = [getattr(exercise, field) for field in plain]
    facts += [[(case.name, case.tiers, case.live) for case in exercise.cases]]
    facts += [sorted(map(attrgetter("name"), exercise.mistakes))]
    if precision := exercise.precision:
        facts += [precision.good_is, precision.lower_is, precision.floor_ulps]
        facts += [] if precision.by_row else ["rows together"]
    if speed := exercise.speed:
        facts += [speed.points, speed.full, speed.none, [case.name for case in speed.cases]]
    return facts


def command(part: str, name: str, device_slug: str = "h200") -> str:
    """What runs this part again and records it."""
    return f"python -m autograder bank {name}{PARTS[part][1]} --record {device_slug}"


def keep(part: str, rows: Iterable[Mapping], device_slug: str) -> None:
    """`rows`, each with its "exercise": all that there are of an exercise."""
    for name, here in groupby(sorted(rows, key=itemgetter("exercise")), key=itemgetter("exercise")):
        save(f"{part}.{name}", list(here), device_slug, means(part, name))


def keep_apart(part: str, rows: Iterable[Mapping], device_slug: str) -> None:
    """The same from a process of its own: naming the machine starts CUDA, and nobody who has it can fork more."""
    child = multiprocessing.get_context("fork").Process(target=keep, args=(part, list(rows), device_slug))
    child.start()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"the outcome of {part} could not be kept")


def kept(part: str, exercise: str) -> list[dict]:
    """The recorded rows of one exercise, on the GPU that ran it as it is now if one did; none when no GPU ran it."""
    found = [there for slug in gpus() if (there := load(f"{part}.{exercise}", slug))]
    found.sort(key=lambda there: there["meaning"] != means(part, exercise))
    return found[0]["rows"] if found else []
