"""Marks by hand, what waits and for whom, and the table of all marks."""

import csv
import shutil
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook
from nbgrader.preprocessors import SaveCells

from autograder.classroom import export, grading, marks, taken
from autograder.classroom.counted import many
from autograder.classroom.overview import answers
from autograder.classroom.verdicts import asked_by, is_check
from autograder.referee.submission import OWN
from course_lib.places import environment

pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")  # nbgrader's own
COURSE = Path(__file__).resolve().parents[2]
LESSON, NAME = "01_roofline", "roofline"
SOFTMAX, SPEED, WORDS = "roofline_softmax_check", "roofline_softmax_speed", "roofline_question_table"
RELEASE = (COURSE / "notebooks" / LESSON / f"{NAME}.ipynb").read_text()


def named(cell: nbformat.NotebookNode) -> str:
    return cell.metadata.get("nbgrader", {}).get("grade_id", "")


class Course:
    """A gradebook with lesson 01, in which ada handed in and bob did not."""

    def __init__(self, folder: Path):
        self.folder, self.url = folder, f"sqlite:///{folder / 'gradebook.db'}"
        self.names = {"student": "ada", "assignment": LESSON, "notebook": NAME, "db_url": self.url}
        self.notebook = nbformat.reads(RELEASE, as_version=4)

    def begin(self) -> None:
        with Gradebook(self.url) as book:
            book.add_assignment(LESSON)
        SaveCells().preprocess(nbformat.reads(RELEASE, as_version=4), {"nbgrader": self.names})
        with Gradebook(self.url) as book:
            book.add_student("ada", last_name="Love, Lace", lms_user_id="4711")
            book.add_student("bob")
            book.add_submission(LESSON, "ada")

    def cell(self, name: str) -> nbformat.NotebookNode:
        return next(c for c in self.notebook.cells if named(c) == name)

    def graded(self, **verdicts: tuple[float, str]) -> nbformat.NotebookNode:
        """A run whose verdicts are these, (points, for whom they wait); 0 for every other cell."""
        for cell in filter(is_check, self.notebook.cells):
            points, waits = verdicts.get(cell.metadata.nbgrader.grade_id, (0.0, ""))
            cell.outputs = grading.outputs_of({"points": points, "waits": waits, "html": "a report"})
        saved = marks.SavedMarks(verdicts=str(self.folder))
        return saved.preprocess(self.notebook, {"nbgrader": self.names})[0]

    def by_hand(self, name: str, points: float | None) -> None:
        """As formgrader writes it."""
        with Gradebook(self.url) as book:
            grade = book.find_grade(name, NAME, LESSON, "ada")
            grade.manual_score, grade.needs_manual_grade = points, False
            book.db.commit()

    def extra(self, name: str, points: float) -> None:
        with Gradebook(self.url) as book:
            grade = book.find_grade(name, NAME, LESSON, "ada")
            grade.extra_credit, grade.needs_manual_grade = points, False
            book.db.commit()

    def in_book(self, name: str) -> marks.InBook:
        return marks.in_book(Gradebook(self.url), LESSON)["ada", NAME, name]

    def reported(self, name: str) -> answers.Answer:
        """As the class report has it."""
        cell = next(c for c in nbformat.reads(RELEASE, as_version=4).cells if named(c) == name)
        shown = marks.read_shown(marks.shown_file("ada", LESSON, NAME, self.folder))
        return answers._answer(taken.Item("ada", LESSON, NAME), cell, shown[name], self.in_book(name), None)

    def asked(self, name: str) -> bool:
        with Gradebook(self.url) as book:
            return book.find_grade(name, NAME, LESSON, "ada").needs_manual_grade

    def waits(self) -> list[str]:
        with Gradebook(self.url) as book:
            return marks.waiting(book.find_submission_notebook(NAME, LESSON, "ada"), self.folder)

    def says(self, name: str) -> str:
        """Why a mark by hand should be looked at again, as the report has it."""
        return "".join(
            out.data["text/html"] for c in self.notebook.cells for out in c.get("outputs", ()) if name in str(out)
        )


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("course")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", environment()["PATH"])  # nbgrader calls alembic by name
        Course(folder).begin()
    return folder / "gradebook.db"


@pytest.fixture
def course(begun, tmp_path) -> Course:
    shutil.copy(begun, tmp_path)
    return Course(tmp_path)


def test_a_mark_by_hand_holds_while_the_answer_and_the_verdict_stay(course):
    course.cell(WORDS).source = "because"
    for _ in range(3):
        course.graded(**{SPEED: (0.0, "a GPU")})
        assert course.asked(SPEED) and course.asked(WORDS)
    course.by_hand(SPEED, 2.0)
    course.by_hand(WORDS, 1.0)
    for _ in range(3):
        course.graded(**{SPEED: (0.0, "a GPU")})
        assert not course.asked(SPEED) and not course.asked(WORDS) and not course.says("by hand")


@pytest.mark.parametrize("measured", [1.0, 2.0, 3.0])
def test_what_is_measured_after_a_mark_by_hand_is_not_mixed_with_it_but_asked(measured, course):
    course.graded(**{SPEED: (0.0, "a GPU")})
    course.by_hand(SPEED, 2.0)
    for _ in range(2):  # and asked until a person has looked
        course.graded(**{SPEED: (measured, "")})
        assert course.asked(SPEED) and course.waits() == ["roofline.softmax, speed (a person)"]
        said = "a mark by hand of 2 points, given when the referee said: this waits for a GPU. Now it says: "
        assert f"{said}{many(measured, 'point')}." in course.says(SPEED)
    course.by_hand(SPEED, measured)
    course.graded(**{SPEED: (measured, "")})
    assert not course.asked(SPEED) and not course.says("by hand")


@pytest.mark.parametrize(
    ("changed", "asks", "holds"), [(WORDS, WORDS, SOFTMAX), ("roofline_softmax", SOFTMAX, WORDS)], ids=["words", "code"]
)
def test_a_mark_by_hand_is_asked_for_again_where_the_answer_changed_and_nowhere_else(changed, asks, holds, course):
    course.cell(WORDS).source = "because"
    course.graded(**{SOFTMAX: (0.0, "a person")})
    course.by_hand(WORDS, 1.0)
    course.by_hand(SOFTMAX, 4.0)
    course.cell(changed).source += "\n# more"
    course.graded(**{SOFTMAX: (0.0, "a person")})
    assert course.asked(asks) and not course.asked(holds)
    assert f"{asks}: There is a mark by hand of" in course.says(asks) and "for an earlier answer" in course.says(asks)


@pytest.mark.parametrize(
    ("text", "asks"),
    [("Memory bound.", True), ("4096", True), ("- bytes", True), ("# Mine", False), ("---", False), ("  \n", False)],
)
def test_a_person_is_asked_where_an_empty_answer_has_words_beside_it(text, asks, course):
    course.notebook.cells.append(nbformat.v4.new_markdown_cell(text, metadata={OWN: True}))
    course.graded()
    assert course.asked(WORDS) == asks
    with Gradebook(course.url) as book:
        said = book.find_comment(WORDS, NAME, LESSON, "ada").auto_comment
    assert said == (None if asks else "No response.")


def test_extra_credit_is_asked_for_again_where_the_answer_changed(course):
    course.graded(**{SOFTMAX: (6.0, "")})
    course.extra(SOFTMAX, 2.0)
    for _ in range(2):
        course.graded(**{SOFTMAX: (6.0, "")})
        assert not course.asked(SOFTMAX) and course.reported(SOFTMAX).points == 8.0
    course.cell("roofline_softmax").source += "\n# more"
    for _ in range(2):  # and asked until a person has looked
        course.graded()
        assert course.waits() == ["roofline.softmax (a person)"]
        assert "There is extra credit of 2 points, given for an earlier answer." in course.says(SOFTMAX)
        assert course.in_book(SOFTMAX) == marks.InBook(2.0, "extra credit of 2 points", True)
    course.extra(SOFTMAX, 0.0)
    course.graded()
    assert not course.asked(SOFTMAX) and course.in_book(SOFTMAX) == marks.InBook(0.0, "", False)


def test_extra_credit_settles_no_points_that_wait(course):
    course.graded(**{SPEED: (0.0, "a GPU")})
    course.extra(SPEED, 2.0)
    course.graded(**{SPEED: (0.0, "a GPU")})
    assert course.waits() == ["roofline.softmax, speed (a GPU)"]
    course.by_hand(SPEED, 1.0)
    course.graded(**{SPEED: (0.0, "a GPU")})
    assert course.waits() == []
    assert course.in_book(SPEED).by_hand == "a mark by hand of 1 point and extra credit of 2 points"


def test_the_report_and_the_export_say_alike_who_still_waits(course):
    course.graded(**{SPEED: (0.0, "a GPU")})
    assert course.reported(SPEED).waits == "a GPU"
    course.by_hand(SPEED, 2.0)
    assert course.reported(SPEED).waits == ""
    course.graded(**{SPEED: (3.0, "")})
    asks = course.reported(SPEED)
    assert course.asked(SPEED) and asks.waits == "a person" and "a mark by hand of 2 points" in asks.why
    for mark in (3.0, None):  # a person decides, or takes the mark back: what was measured counts
        course.by_hand(SPEED, mark)
        said = course.reported(SPEED)
        assert (said.points, said.waits, said.why) == (3.0, "", "") and course.waits() == []


def test_a_mark_by_hand_of_which_nothing_is_known_is_asked_for(course):
    course.by_hand(SOFTMAX, 4.0)
    course.graded()
    assert course.asked(SOFTMAX) and "it is not known for which answer" in course.says(SOFTMAX)


@pytest.mark.parametrize("torn", ["", "{", None])
def test_a_run_that_was_killed_before_its_record_asks_again(torn, course):
    course.graded(**{SPEED: (0.0, "a GPU")})
    record = marks.shown_file("ada", LESSON, NAME, course.folder)
    before = record.read_text()
    course.by_hand(SPEED, 2.0)
    course.graded(**{SPEED: (3.0, "")})
    record.write_text(before if torn is None else torn)
    course.graded(**{SPEED: (3.0, "")})
    assert course.asked(SPEED) and "a mark by hand of 2 points" in course.says(SPEED)


def test_exercises_that_changed_since_they_were_judged_are_named(course, monkeypatch):
    course.graded()
    assert marks.outdated(["ada", "bob"], LESSON, course.folder) == []
    now = marks.grader_hash
    monkeypatch.setattr(marks, "grader_hash", lambda name: now(name) + "changed" * (name == "roofline.work"))
    assert marks.outdated(["ada", "bob"], LESSON, course.folder) == ["roofline.work"]
    assert marks.outdated(["bob"], LESSON, course.folder) == []
    course.graded()
    assert marks.outdated(["ada"], LESSON, course.folder) == []


def test_what_waits_is_told_by_the_names_of_exercises_and_for_whom(course):
    course.cell(WORDS).source = "because"
    course.graded(**{SPEED: (0.0, "a GPU"), "roofline_graph_check": (0.0, "a GPU"), SOFTMAX: (0.0, "a person")})
    waits = ["roofline.softmax (a person)", "roofline.softmax, speed (a GPU)", "roofline.graph (a GPU)"]
    assert set(course.waits()) == {*waits, f"{WORDS} (a person)"}
    assert [one for one in course.waits() if one in waits] == waits, "in the order of the lesson"
    course.by_hand("roofline_graph_check", 3.0)
    marks.tell(course.notebook, ["A zip was handed in"])
    shown = export.WhatWaits(verdicts=str(course.folder)).preprocess(course.notebook, {"nbgrader": course.names})[0]
    odd, first = shown.metadata[export.FIRST][-2:]
    assert odd == "<small>A zip was handed in</small>"
    assert "These wait: " in first and "roofline.softmax, speed (a GPU)" in first and "roofline.graph" not in first


def test_the_table_of_marks_tells_what_waits_points_for_speed_and_who_never_handed_in(course):
    course.graded(**{SPEED: (3.0, ""), SOFTMAX: (6.0, ""), "roofline_graph_check": (0.0, "a GPU")})
    table = export.Grades(verdicts=str(course.folder), to=str(course.folder / "grades.csv"))
    with Gradebook(course.url) as book:
        table.export(book)
    with (course.folder / "grades.csv").open(newline="") as file:
        ada, bob = sorted(csv.DictReader(file), key=lambda row: row["student_id"])
    checks = [asked_by(cell) for cell in course.notebook.cells if is_check(cell)]
    points = [cell.metadata.nbgrader.points for cell in course.notebook.cells if is_check(cell)]
    speed = sum(most for asked, most in zip(checks, points, strict=True) if asked.speed)
    assert (ada["score"], ada["speed_score"], float(ada["max_speed_score"])) == ("9.0", "3.0", speed)
    assert (ada["last_name"], ada["lms_user_id"], ada["waits"]) == ("Love, Lace", "4711", "roofline.graph (a GPU)")
    assert (bob["score"], bob["raw_score"], bob["waits"]) == ("", "", "") and bob["max_score"] == ada["max_score"]


def test_the_table_of_marks_tells_why_a_person_is_asked_and_no_spreadsheet_takes_it_for_a_formula(course):
    cell = course.cell(SOFTMAX)
    course.graded(**{SOFTMAX: (0.0, "a person")})
    why = {"points": 0.0, "waits": "a person", "html": "", "why": "=1+1.ipynb was not graded"}
    cell.outputs = grading.outputs_of(why)
    marks.SavedMarks(verdicts=str(course.folder)).preprocess(course.notebook, {"nbgrader": course.names})
    table = export.Grades(verdicts=str(course.folder), to=str(course.folder / "grades.csv"))
    with Gradebook(course.url) as book:
        table.export(book)
    with (course.folder / "grades.csv").open(newline="") as file:
        ada, bob = sorted(csv.DictReader(file), key=lambda row: row["student_id"])
    assert ada["why"] == "'=1+1.ipynb was not graded" and not bob["why"]
