"""Late days: how many a student has, what they cost beyond, and who was given more time.

Everything lies in nbgrader's own fields: the due date of a lesson, the extension of a submission, its penalty. What a
late hand-in costs is worked out from these each time, so that a mark by hand or an extension given later counts too.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from nbgrader.api import Gradebook, MissingEntry, SubmittedAssignment
from nbgrader.coursedir import CourseDirectory
from nbgrader.plugins import LateSubmissionPlugin
from nbgrader.preprocessors import AssignLatePenalties
from traitlets import Float, Int
from traitlets.config import Config, PyFileConfigLoader

from autograder.classroom.counted import many
from autograder.classroom.handed_in import STAMP, in_utc

DAY_S = 86_400
SETTINGS = "nbgrader_config.py"
FORM = "%Y-%m-%d %H:%M"  # of a due date
MOST_DAYS = 1000  # of an extension
NAMED = 10  # students in a line


class LateDays(LateSubmissionPlugin):
    """In place of nbgrader's own plugin, which knows all or nothing."""

    free_days = Int(0, help="late days of each student in the whole course that cost nothing").tag(config=True)
    percent_a_day = Float(0.0, help="of the points earned, for each day begun beyond the free ones").tag(config=True)

    def late_submission_penalty(self, student_id: str, score: float, total_seconds_late: float) -> float | None:
        """For nbgrader's autograde, whose step holds the gradebook and the lesson."""
        book, lesson = self.parent.gradebook, self.parent.assignment_id
        return self.cost(score, self.charged(book, student_id).get(lesson, 0))

    def charged(self, book: Gradebook, student: str) -> dict[str, int]:
        """Lesson -> days that cost something."""
        return charged([(s.assignment.name, days_late(s)) for s in handed_in(book, student)], self.free_days)

    def cost(self, score: float, days: int) -> float | None:
        return round(score * min(1.0, days * self.percent_a_day / 100), 2) or None


def days_late(submission: SubmittedAssignment) -> int:
    """Days begun after the due date, extension included."""
    return math.ceil(submission.total_seconds_late / DAY_S)


def is_handed_in(submission: SubmittedAssignment) -> bool:
    """An extension that is given before makes an entry in the gradebook too, in which nothing was ever graded."""
    grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
    return any(grade.auto_score is not None or grade.manual_score is not None for grade in grades)


def handed_in(book: Gradebook, student: str) -> list[SubmittedAssignment]:
    """What a student handed in of the lessons that have a due date, in the order of these dates."""
    found = [one for one in book.find_student(student).submissions if is_handed_in(one) and one.assignment.duedate]
    return sorted(found, key=lambda one: (one.assignment.duedate, one.assignment.name))


def charged(late: Iterable[tuple[str, int]], free: int) -> dict[str, int]:
    """late: lessons in order, and how many days each was late. The free days go to the first ones."""
    found = {}
    for lesson, days in late:
        paid = min(days, free)
        free -= paid
        found[lesson] = days - paid
    return found


def settle(book: Gradebook, rule: LateDays) -> None:
    """Write every penalty as it should be now."""
    for student in book.students:
        days = rule.charged(book, student.id)
        for submission in student.submissions:
            for notebook in submission.notebooks:
                notebook.late_submission_penalty = rule.cost(notebook.score, days.get(submission.assignment.name, 0))
    book.db.commit()


def rule_of(config: Config) -> LateDays | None:
    """The course's rule; None where its settings name another plugin."""
    return LateDays(config=config) if AssignLatePenalties(config=config).plugin_class is LateDays else None


# ------------------------------------------------------------------------------------------- the verb


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    due = actions.add_parser("due", help="set the due date of a lesson")
    due.add_argument("lesson")
    due.add_argument("date", help="such as '2026-12-01 23:59 +0100'; UTC without a zone; none takes it away")
    extend = actions.add_parser("extend", help="give one student more time for one lesson")
    extend.add_argument("student")
    extend.add_argument("lesson")
    extend.add_argument("days", type=float, help="after the due date; 0 takes the extension back")


def main(args: argparse.Namespace) -> int:
    """Without an action: who was late, and what it costs."""
    try:
        config, book = course()
    except FileNotFoundError as error:
        print(error)
        return 2
    if args.action == "extend" and not 0 <= args.days <= MOST_DAYS:
        print(f"An extension of {many(args.days, 'day')} cannot be given: it is 0 to {MOST_DAYS}.")
        return 1
    with book:
        try:
            if args.action == "due":
                date = None if args.date == "none" else in_utc(args.date)
                book.update_or_create_assignment(book.find_assignment(args.lesson).name, duedate=date)
                print(f"{args.lesson} " + (f"is due {date:{FORM}} UTC." if date else "has no due date."))
            elif args.action == "extend":
                extend(book, args.student, args.lesson, args.days)
        except MissingEntry as error:
            print(f"{error}. `nbgrader generate_assignment` enters a lesson, `python -m autograder roster` students.")
            return 1
        except ValueError:
            print(f"{args.date!r} is no date with a time. Say it as 2026-12-01 23:59 +0100; without a zone it is UTC.")
            return 1
        rule = rule_of(config)
        if rule:
            settle(book, rule)
        print("\n".join(told(book, rule)) or "Nobody was late, and nobody has an extension.")
    return 0


def course() -> tuple[Config, Gradebook]:
    """The settings and the gradebook of the folder that a command is called in, as nbgrader's own commands do."""
    if not Path(SETTINGS).is_file():
        raise FileNotFoundError(f"There is no {SETTINGS} here: run this in the folder of the course.")
    config = PyFileConfigLoader(SETTINGS, path=str(Path.cwd())).load_config()
    where = CourseDirectory(config=config)
    return config, Gradebook(where.db_url, where.course_id)


def extend(book: Gradebook, student: str, lesson: str, days: float) -> None:
    book.find_assignment(lesson)
    book.find_student(student)
    submission = book.update_or_create_submission(lesson, student)  # before it is handed in, too
    submission.extension = timedelta(days=days) if days else None
    book.db.commit()


def told(book: Gradebook, rule: LateDays | None) -> list[str]:
    """A line for every late hand-in and every extension, and for each lesson one of those that came without a time."""
    lines, timeless = [], {}
    for student in book.students:
        days = rule.charged(book, student.id) if rule else {}
        for one in sorted(student.submissions, key=lambda one: one.assignment.name):
            late, lesson = days_late(one), one.assignment.name
            if one.assignment.duedate and one.timestamp is None and is_handed_in(one):
                timeless.setdefault(lesson, []).append(student.id)
            if not late and not one.extension:
                continue
            said = [f"extension of {many(one.extension.total_seconds() / DAY_S, 'day')}"] if one.extension else []
            if late:
                free = late - days.get(lesson, 0)
                said += [f"{many(late, 'day')} late", *([f"{free} of them free"] if free and rule else [])]
                said += [f"penalty {one.late_submission_penalty or 0:g} of {many(one.score, 'point')}"]
            lines.append(f"{student.id}, {lesson}: {', '.join(said)}")
    for lesson, who in sorted(timeless.items()):
        named = ", ".join(sorted(who)[:NAMED]) + " ..." * (len(who) > NAMED)
        lines.append(f"{lesson}: {many(len(who), 'hand-in')} without a time ({STAMP}), on time therefore: {named}")
    return lines
