"""What a recorded section depends on: whether it still holds, and what measures it again.

A benchmark depends on the kernels that it imports, directly or through others, or on what it names in MEASURES. A
section of the bank depends on its exercise and its submissions (autograder/bank/recording.py). Tables that lessons
record are made anew whenever a lesson is executed.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from autograder.bank import recording
from autograder.exercise import find
from course_lib import results
from course_lib.meaning import ROOT, meaning, reached

KERNELS = ("course_lib/kernels", "course_lib/parallel")


def measured(section: str) -> list[Path]:
    """The files that a benchmark measures."""
    module = importlib.import_module(f"benchmarks.{section}")
    named = [ROOT / path for path in getattr(module, "MEASURES", ())]
    return named or reached(ROOT / "benchmarks" / f"{section}.py", KERNELS)


def means(section: str) -> str | None:
    """What the code behind a section means now; None where nothing tells, or its exercise is gone."""
    part, _, name = section.partition(".")
    if part in recording.PARTS:
        return recording.means(part, name) if find(name) else None
    return meaning(measured(section)) if (ROOT / "benchmarks" / f"{section}.py").is_file() else None


def is_stale(section: str, slug: str = "h200") -> bool:
    """Whether the code has changed its meaning since the section was recorded."""
    entry = results.load(section, slug)
    return bool(entry) and (now := means(section)) is not None and now != entry["meaning"]


def stale(slug: str = "h200") -> list[str]:
    return [section for section in results.sections(slug) if is_stale(section, slug)]


def command(section: str, slug: str = "h200") -> str:
    """What records a section anew on a machine that has what it needs."""
    part, _, name = section.partition(".")
    return recording.command(part, name, slug) if part in recording.PARTS else f"python -m benchmarks {section}"


def tell_stale(slug: str = "h200") -> int:
    found = stale(slug)
    for section in found:
        date = results.load(section, slug)["date"]
        print(f"{section:<32} recorded {date}, measured again by: {command(section, slug)}")
    print(f"{len(found)} of {len(results.sections(slug))} sections of {slug}.json are to be measured again.")
    return 0
