"""`nbgrader export` and feedback say what still waits, and for whom."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from nbconvert.exporters import HTMLExporter, TemplateExporter
from nbformat import NotebookNode
from nbgrader import converters
from nbgrader.api import Assignment, Gradebook, MissingEntry, Student
from nbgrader.apps import api, generatefeedbackapp
from nbgrader.plugins import ExportPlugin
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.server_extensions.formgrader import handlers
from nbgrader.utils import is_grade
from traitlets import List, Unicode
from traitlets.config import Config, LoggingConfigurable

from autograder.classroom.late import is_handed_in, rule_of, settle
from autograder.classroom.marking import TEMPLATES
from autograder.classroom.marks import VERDICTS, called, taken_out, told, waiting, why_it_waits
from autograder.judging.verdict import for_speed

COLUMNS = """assignment duedate timestamp student_id lms_user_id last_name first_name email raw_score
    late_submission_penalty score max_score speed_score max_speed_score waits why""".split()

QUOTED = csv.QUOTE_NONNUMERIC  # of tables: no sign within a text ends its cell
WORDLESS = re.compile(r"<img(?=\s)(?![^>]*\salt=)")
NO_WORDS = "No description has been provided for this image"
OTHERS = "student_id lms_user_id last_name first_name email why".split()  # whose text is not ours
MADE_OF = re.compile(r"<!-- made of (\w+) -->\s*$")
CALLED = "speed_of_light_called"  # in a cell's metadata, for the template
FIRST = "speed_of_light_first"  # in a notebook's: HTML of what stands above the list of marks


# A spreadsheet computes a cell that begins so. Where it separates cells by semicolons or tabs, one begins after these.
FORMULA = re.compile(r"""(?:^|(?<=[;\t\r\n]))(?=[\s"]*[=+\-@\uff1d\uff0b\uff0d\uff20])|^(?=[\t\r])""")


def as_text(text: str | None) -> str | None:
    """A cell of others' text, which no spreadsheet computes."""
    return FORMULA.sub("'", text) if text else text


class Grades(ExportPlugin):
    """nbgrader's own table, and beside it: the points for speed, which are part of the score, and what waits. Who never
    handed in has no score, which is not the same as 0."""

    verdicts = Unicode(str(VERDICTS), help="folder of verdict files").tag(config=True)

    def export(self, gradebook: Gradebook) -> None:
        to = self.to or "grades.csv"
        self.log.info("Exporting grades to %s", to)
        self.settle(gradebook)
        chosen = [list(map(str, names)) for names in (self.assignment, self.student)]
        with open(to, "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, COLUMNS, extrasaction="ignore", quoting=QUOTED)
            table.writeheader()
            rows = self._rows(gradebook, *chosen)
            table.writerows(row | {name: as_text(row.get(name)) for name in OTHERS} for row in rows)

    def settle(self, gradebook: Gradebook) -> None:
        """What late days cost, of the points that there are now."""
        if rule := rule_of(self.config):
            settle(gradebook, rule)

    def _rows(self, gradebook: Gradebook, lessons: list[str], students: list[str]) -> Iterator[dict]:
        for lesson in gradebook.assignments:
            for student in gradebook.students:
                if lesson.name in (lessons or [lesson.name]) and student.id in (students or [student.id]):
                    yield self._row(gradebook, lesson, student)

    def _row(self, gradebook: Gradebook, lesson: Assignment, student: Student) -> dict:
        speed = {cell.name for nb in lesson.notebooks for cell in nb.source_cells if for_speed(called(cell))}
        row = {"assignment": lesson.name, "duedate": lesson.duedate, "max_score": lesson.max_score}
        row["max_speed_score"] = sum(c.max_score for nb in lesson.notebooks for c in nb.grade_cells if c.name in speed)
        row |= {"student_id": student.id, "lms_user_id": student.lms_user_id, "email": student.email}
        row |= {"last_name": student.last_name, "first_name": student.first_name}
        try:
            found = gradebook.find_submission(lesson.name, student.id)
        except MissingEntry:
            return row
        if not is_handed_in(found):
            return row
        penalty = found.late_submission_penalty or 0.0
        row |= {"timestamp": found.timestamp, "raw_score": found.score, "late_submission_penalty": penalty}
        row |= {"score": max(0.0, found.score - penalty), "seconds_late": found.total_seconds_late}
        row["speed_score"] = sum(grade.score for nb in found.notebooks for grade in nb.grades if grade.name in speed)
        row["waits"] = "; ".join(one for nb in found.notebooks for one in waiting(nb, Path(self.verdicts)))
        row["why"] = "; ".join(one for nb in found.notebooks for one in why_it_waits(nb, Path(self.verdicts)))
        return row


class Rendered(TemplateExporter):
    """Keeps a page to itself. nbconvert's HTMLExporter, before which this comes, takes two thirds of a page's time to
    make a tree of it, in which it looks for pictures without words and for cells of JupyterLab, which are not here."""

    def from_notebook_node(self, nb: NotebookNode, resources: dict | None = None, **options) -> tuple[str, dict]:
        self.page, resources = super().from_notebook_node(nb, resources, **options)
        return "", resources


class Feedback(HTMLExporter, Rendered):
    """nbgrader's page, on which what people should know comes first, and the list of marks has the names of exercises
    where nbgrader says "Test cell"."""

    def __init__(self, config: Config, **options):
        config = config.copy()
        config.HTMLExporter.template_name = "named"
        config.HTMLExporter.extra_template_basedirs = [str(TEMPLATES), handlers.template_path]
        config.HTMLExporter.extra_template_paths.append(handlers.template_path)  # by which ours extends nbgrader's
        super().__init__(config=config, **options)

    def from_notebook_node(self, nb: NotebookNode, resources: dict | None = None, **options) -> tuple[str, dict]:
        _, resources = super().from_notebook_node(nb, resources, **options)
        return WORDLESS.sub(f'<img alt="{NO_WORDS}"', self.page), resources


class WhatWaits(NbGraderPreprocessor):
    """Of feedback: which points are not there yet and what was odd, for the head of the page, and what each graded cell
    is called."""

    # HTMLExporter sets it for all of nbconvert's classes, and nbgrader's own base says that it cannot be set
    display_data_priority = List().tag(config=True)
    verdicts = Unicode(str(VERDICTS), help="folder of verdict files").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict):
        names = resources["nbgrader"]
        with Gradebook(names["db_url"]) as gradebook:
            found = gradebook.find_submission_notebook(names["notebook"], names["assignment"], names["student"])
            waits = waiting(found, Path(self.verdicts))
        for cell in filter(is_grade, nb.cells):
            cell.metadata[CALLED] = called(cell)
        nb.metadata[FIRST] = taken_out(nb)
        if waits:
            nb.metadata[FIRST].append(told([f"Points may still come. These wait: {', '.join(waits)}."]))
        return nb, resources


class GenerateFeedback(converters.GenerateFeedback):
    """nbgrader's own command, and the button of formgrader. A page that is older than its marks is made again."""

    def init_destination(self, assignment_id: str, student_id: str) -> bool:
        folder, force = Path(self._format_dest(assignment_id, student_id)), self.force
        with Gradebook(self.coursedir.db_url, self.coursedir.course_id) as book:
            try:
                book.find_submission(assignment_id, student_id)
            except MissingEntry:  # nbgrader's own ends there, for everybody behind
                self.log.warning("%s has no marks: was the folder renamed? Delete autograded/%s", *[student_id] * 2)
                return False
        self.force |= not all(is_current(self, folder / f"{one.stem}.html", one) for one in map(Path, self.notebooks))
        try:
            return super().init_destination(assignment_id, student_id)
        finally:
            self.force = force

    def convert_single_notebook(self, notebook_filename: str) -> None:
        self.made_of = made_of(self, Path(notebook_filename))  # before: a mark may be given meanwhile
        super().convert_single_notebook(notebook_filename)

    def write_single_notebook(self, output: str, resources: dict) -> None:
        super().write_single_notebook(f"{output}\n<!-- made of {self.made_of} -->\n", resources)


def install() -> None:
    """Wherever nbgrader begins to make feedback, it begins ours."""
    for place in (generatefeedbackapp, api):
        place.GenerateFeedback = GenerateFeedback


def is_current(command: LoggingConfigurable, page: Path, autograded: Path) -> bool:
    """Whether a page of feedback shows the marks that the gradebook has now and the verdicts that were given last. Of a
    student of whom the gradebook has none, it does."""
    now = made_of(command, autograded)
    said = MADE_OF.search(page.read_text(encoding="utf-8")) if page.exists() else None
    return not now or (said is not None and said[1] == now)


def made_of(command: LoggingConfigurable, autograded: Path) -> str:
    """A hash of all that a page of feedback shows; "" where the gradebook has nothing. command: any of nbgrader's."""
    where, verdicts = command.coursedir, Path(WhatWaits(parent=command).verdicts)
    with Gradebook(where.db_url, where.course_id) as book:
        try:
            found = book.find_submission_notebook(autograded.stem, autograded.parent.name, autograded.parents[1].name)
        except MissingEntry:
            return ""
        grades = sorted([one.name, one.score, one.max_score, one.extra_credit] for one in found.grades)
        comments = sorted([one.name, one.comment] for one in found.comments)
        about = json.dumps([grades, comments, found.late_submission_penalty, waiting(found, verdicts)])
    return hashlib.sha256(about.encode() + autograded.read_bytes()).hexdigest()[:16]
