"""`python -m autograder seeds LESSON`: a run's seed is closed until an instructor opens it after the deadline.

Closed: the file is its owner's alone, reports tell a hash, and `verdict --why` shows no seed. Open: `--why` tells the
seed of one text, with which a student repeats the judging (`try NOTEBOOK --seed N`). The run's own seed is never told,
so what is told of one text says nothing about another one.
"""

from __future__ import annotations

import argparse
import datetime
import sys

from autograder.classroom import cohort, taken
from autograder.classroom.taken import VERDICTS
from autograder.classroom.verdicts import beside, seed_file

DONE, REFUSED = 0, 2  # exit status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lesson", help="01_roofline")
    parser.add_argument("--open", action="store_true", help="from now on `verdict --why` tells them")


def main(args: argparse.Namespace) -> int:
    taken.notebooks(args.lesson)
    if args.open and not is_open(args.lesson):
        end = deadline(args.lesson)
        if is_before(end):
            print(f"The seeds of {args.lesson} stay closed until {end:%Y-%m-%d %H:%M} UTC, when the last "
                  "student's time is over.", file=sys.stderr)  # fmt: skip
            return REFUSED
        if not end:
            print(f"The gradebook knows no due date of {args.lesson}, so none was looked at.")
        with taken.closed():
            path = VERDICTS / f"{args.lesson}.opened"
            path.parent.mkdir(parents=True, exist_ok=True)
            beside(path).write_text(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC")
            beside(path).replace(path)
    print("\n".join(told(args.lesson)))
    return DONE


def told(lesson: str) -> list[str]:
    path = seed_file(VERDICTS, lesson)
    if not path.exists():
        return [f"{lesson} was not judged yet, so there is no seed."]
    since = is_open(lesson)
    lines = [f"The seeds of {lesson} are open since {since}." if since else f"The seeds of {lesson} are closed."]
    if path.stat().st_mode & 0o077:
        lines.append(f"Others can read them: chmod 600 {path}")
    return lines


def is_open(lesson: str) -> str:
    """Since when, or "". A due date or an extension that came after they were opened closes them until it is over."""
    path = VERDICTS / f"{lesson}.opened"
    return path.read_text().strip() if path.exists() and not is_before(deadline(lesson)) else ""


def is_before(end: datetime.datetime | None) -> bool:
    return end is not None and datetime.datetime.now(datetime.UTC).replace(tzinfo=None) < end


def deadline(lesson: str) -> datetime.datetime | None:
    """When the last student's time is over, extensions included, in UTC; None where the gradebook knows no due date."""
    book = cohort.gradebook(lesson)
    if book is None:
        return None
    with book:
        found = next((one for one in book.assignments if one.name == lesson), None)
        if found is None or found.duedate is None:
            return None
        extended = [found.duedate + one.extension for one in found.submissions if one.extension]
        return max([found.duedate, *extended])
