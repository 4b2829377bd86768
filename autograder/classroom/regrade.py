"""`python -m autograder regrade LESSON EXERCISE`: what one exercise, after a change of it, is worth for everybody."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Container, Iterable
from dataclasses import dataclass

from autograder import exercise as exercises
from autograder.classroom import cohort, taken
from autograder.classroom.counted import many
from autograder.classroom.marks import in_book, read_shown, shown_file
from autograder.classroom.taken import VERDICTS
from autograder.classroom.verdicts import Asked, asked_by, is_check
from autograder.referee import sandbox
from course_lib.places import HOME, environment
from course_lib.table import Table

DONE, REFUSED = 0, 2  # exit status


@dataclass(frozen=True)
class Change:
    """One check cell of one student, before and after."""

    student: str
    speed: bool
    before: dict  # points and waits, as the gradebook has them
    after: dict
    mark: str  # by hand, or ""

    @property
    def differs(self) -> bool:
        return (self.before["points"], self.before["waits"]) != (self.after["points"], self.after["waits"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lesson", help="01_roofline")
    parser.add_argument("exercise", help="roofline.softmax")
    parser.add_argument(
        "--write", action="store_true", help="and write the gradebook; without it, nothing changes there"
    )


def main(args: argparse.Namespace) -> int:
    taken.notebooks(args.lesson)
    if exercises.find(args.exercise) is None:
        print(f"No exercise is called {args.exercise!r}.", file=sys.stderr)
        return REFUSED
    try:
        sandbox.require()
    except sandbox.NoSandbox as error:
        print(f"regrade: {error}", file=sys.stderr)
        return REFUSED
    with taken.closed():
        newer = handed_in_since(args.lesson)
        found = list(changes(args.lesson, args.exercise, newer))
    if newer:
        print(f"Left out, since what was graded is not what lies there now: {', '.join(newer)}.")
        print(f"To grade one of them: nbgrader autograde {args.lesson} --force --student={shlex.quote(newer[0])}")
    if not found:
        print(f"Nobody {'else ' if newer else ''}has marks for {args.exercise} of {args.lesson} yet.")
        return DONE
    print("\n".join(told(args.exercise, found)))
    if not args.write:
        print("The gradebook is as it was. The same command with --write writes these points.")
        return DONE
    line = ["nbgrader", "autograde", args.lesson, "--force", f"--JudgedNotebook.only={args.exercise}"]
    line += [f"--Autograde.again={student}" for student in dict.fromkeys(one.student for one in found)]
    return subprocess.run(line, cwd=HOME, env=environment(), check=False).returncode


def handed_in_since(lesson: str) -> list[str]:
    """Students whose marks are for another hand-in than the one that lies there now."""
    course = cohort.course(lesson)
    return [
        student
        for student in cohort.taken_in(course, taken.TAKEN)
        if shown_file(student, lesson, "", VERDICTS).parent.exists()
        and not cohort.is_as_graded(course, taken.TAKEN, student)
    ]


def changes(lesson: str, exercise: str, left_out: Container[str] = ()) -> Iterable[Change]:
    """For everybody who has marks. What lacks a verdict of the exercise as it is now is judged here."""
    book = in_book(cohort.gradebook(lesson), lesson)
    items = [item for item in taken.items(lesson) if item.student not in left_out]
    for number, item in enumerate(items, 1):
        end = "\n" if number == len(items) else ""
        print(f"\r{exercise}: {number} of {many(len(items), 'notebook')}", end=end, file=sys.stderr, flush=True)
        shown = read_shown(shown_file(item.student, lesson, item.notebook, VERDICTS))
        checks = filter(is_check, taken.released(lesson, item.notebook).cells)
        asked = {cell.metadata.nbgrader["grade_id"]: asked_by(cell) for cell in checks}
        mine = {name: one for name, one in asked.items() if one and one.name == exercise and name in shown}
        judging = item.judging() if mine else None
        if judging is None:
            continue
        with judging:
            for name, one in mine.items():
                marks = book.get((item.student, item.notebook, name))
                mark = marks.by_hand if marks else ""
                yield Change(item.student, one.speed, shown[name], judging.verdict(one), mark)


def told(exercise: str, found: list[Change]) -> list[str]:
    rows = [
        (
            one.student,
            str(Asked(exercise, one.speed)),
            _points(one.before),
            _points(one.after),
            f"{one.mark} stays, and a person is asked" if one.mark else "",
        )
        for one in found
        if one.differs
    ]
    same = sum(not one.differs for one in found)
    head = f"{exercise}: marks that change: {len(rows)}; that stay as they are: {same}."
    titles = ["student", "exercise", "before", "after", "mark by hand"]
    if not any(row[-1] for row in rows):
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    return [head, str(Table(titles, rows))] if rows else [head]


def _points(one: dict) -> str:
    return f"waits for {one['waits']}" if one["waits"] else f"{one['points']:g}"
