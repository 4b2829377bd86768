"""`nbgrader export --exporter=autograder.classroom.lms.Canvas` (or Moodle, Gradescope): marks as they want them.

One column a lesson, and points for speed in a column of their own: both together are nbgrader's score. A cell is empty
where nothing was handed in, and where some of its points still wait.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from nbgrader.api import Gradebook, Student

from autograder.classroom.counted import many
from autograder.classroom.export import QUOTED, Grades, as_text
from autograder.judging.verdict import for_speed


@dataclass(frozen=True)
class Column:
    """The points of every student for one lesson, or for speed there."""

    title: str
    out_of: float
    points: dict[str, str]  # student -> number, or "" where it is not known yet
    rows: dict[str, dict]  # student -> the row of nbgrader's own table

    def waits(self, student: str) -> bool:
        """Whether something was handed in, and its points are not known yet."""
        return not self.points[student] and self.rows[student].get("score") is not None


class Sheet(Grades):
    """A table with one row a student."""

    file = "grades.csv"

    def export(self, gradebook: Gradebook) -> None:
        to = self.to or self.file
        self.log.info("Exporting grades to %s", to)
        self.settle(gradebook)
        columns = list(self.columns(gradebook))
        chosen = list(map(str, self.student))
        students = [one for one in gradebook.students if one.id in (chosen or [one.id])]
        with open(to, "w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n", quoting=QUOTED).writerows(self.lines(students, columns))
        for column in columns:
            if empty := sum(column.waits(one.id) for one in students):
                cells = f"{many(empty, 'cell')} {'are' if empty > 1 else 'is'}"
                self.log.warning(
                    "%s: %s empty because points wait; grades.csv says for whom and why", column.title, cells
                )

    def columns(self, gradebook: Gradebook) -> Iterator[Column]:
        found: dict[str, dict[str, dict]] = {}
        for row in self._rows(gradebook, list(map(str, self.assignment)), []):
            found.setdefault(row["assignment"], {})[row["student_id"]] = row
        for lesson, rows in found.items():
            first = next(iter(rows.values()))
            speed = first["max_speed_score"]
            shares = {student: shared(row) for student, row in rows.items()}
            yield Column(lesson, first["max_score"] - speed, {name: both[0] for name, both in shares.items()}, rows)
            if speed:
                yield Column(f"{lesson} speed", speed, {name: both[1] for name, both in shares.items()}, rows)

    def lines(self, students: Iterable[Student], columns: list[Column]) -> Iterator[list]:
        """The rows of the file, header and all."""
        raise NotImplementedError


def shared(row: dict) -> tuple[str, str]:
    """The score without points for speed, and these; "" where some of them still wait, or nothing was handed in."""
    if row.get("score") is None:
        return "", ""
    waits = [one.rpartition(" (")[0] for one in row["waits"].split("; ") if one]
    speed = min(row["speed_score"], row["score"])
    is_speed = list(map(for_speed, waits))
    return ("" if not all(is_speed) else number(row["score"] - speed)), ("" if any(is_speed) else number(speed))


def number(points: float) -> str:
    return f"{round(points, 2):g}"


class Canvas(Sheet):
    """Canvas finds a student by its own ID, which a roster from Canvas brings, or by the login."""

    file = "grades_canvas.csv"

    def lines(self, students: Iterable[Student], columns: list[Column]) -> Iterator[list]:
        yield ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *(column.title for column in columns)]
        yield ["    Points Possible", "", "", "", "", *(number(column.out_of) for column in columns)]
        for one in students:
            name = ", ".join(filter(None, [one.last_name, one.first_name])) or one.id
            person = [name, one.lms_user_id or "", "", one.id, ""]
            yield [*map(as_text, person), *(column.points[one.id] for column in columns)]


class Moodle(Sheet):
    """As Moodle's own export of grades; on import map "ID number" or "Email address" to the same field.

    Left out on purpose is its last column, "Last downloaded from this course": with it Moodle's import stops at the
    first mark that was changed in Moodle since that time. An empty cell is "no grade" there: it takes a mark away."""

    file = "grades_moodle.csv"

    def lines(self, students: Iterable[Student], columns: list[Column]) -> Iterator[list]:
        header = ["First name", "Last name", "ID number", "Institution", "Department", "Email address"]
        yield [*header, *(f"Assignment: {column.title} (Real)" for column in columns)]
        for one in students:
            person = [one.first_name or "", one.last_name or "", one.id, "", "", one.email or ""]
            yield [*map(as_text, person), *(column.points[one.id] for column in columns)]


class Gradescope(Sheet):
    """As the grades that Gradescope lets one download: four columns a lesson."""

    file = "grades_gradescope.csv"

    def lines(self, students: Iterable[Student], columns: list[Column]) -> Iterator[list]:
        parts = ("", " - Max Points", " - Submission Time", " - Lateness (H:M:S)")
        header = ["First Name", "Last Name", "SID", "Email", "Sections"]
        header += [f"{column.title}{part}" for column in columns for part in parts]
        yield [*header, "Total Lateness (H:M:S)"]
        for one in students:
            person = [one.first_name or "", one.last_name or "", one.id, one.email or "", ""]
            late = {column.rows[one.id]["assignment"]: column.rows[one.id].get("seconds_late", 0) for column in columns}
            cells = [cell for column in columns for cell in self.cells(column, one.id)]
            yield [*map(as_text, person), *cells, clock(sum(late.values()))]

    def cells(self, column: Column, student: str) -> list:
        row = column.rows[student]
        when = row.get("timestamp")
        late = clock(row["seconds_late"]) if when else ""
        return [column.points[student], number(column.out_of), f"{when:%Y-%m-%d %H:%M:%S} +0000" if when else "", late]


def clock(seconds: float) -> str:
    hours, rest = divmod(timedelta(seconds=seconds), timedelta(hours=1))
    return f"{hours:02}:{rest.seconds // 60:02}:{rest.seconds % 60:02}"
