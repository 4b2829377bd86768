"""A course of two in a temporary folder: the solved lesson and the untouched one go the whole way to the gradebook."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nbgrader.api import Gradebook, GradeCell

from autograder import exercise
from autograder.classroom import lessons
from autograder.classroom.counted import many
from autograder.classroom.lessons import COURSE, Lesson
from autograder.classroom.marks import called, read_shown, shown_file
from autograder.classroom.verdicts import A_GPU, Asked, asked_by
from course_lib.places import environment

SOLVED, UNTOUCHED = "solved", "untouched"


@dataclass(frozen=True)
class Mark:
    """One graded cell of one hand-in, as the gradebook has it."""

    name: str  # of the exercise, or of the cell of an answer in words
    points: float | None  # None: only a person can say
    out_of: float
    waits: bool
    for_whom: str  # "a GPU", "a person" or ""
    by_machine: bool


class Failed(Exception):
    """A command of nbgrader did not end well."""


def why(said: str) -> str:
    """The last sentence of an exception, or the end of what a command said."""
    found = re.findall(r"^ *(\w*(?:Error|Exception): .+)$", said, re.MULTILINE)
    return found[-1] if found else said.strip()[-300:]


@dataclass
class Course:
    root: Path
    lesson: Lesson

    def nbgrader(self, *words: str) -> float:
        """Seconds of one command."""
        began = time.monotonic()
        kept = str(self.root / "verdicts")  # and not beside those of the real course
        line = [sys.executable, "-m", "nbgrader", *words]
        line += [f"--{step}.verdicts={kept}" for step in ("JudgedNotebook", "SavedMarks")]
        done = subprocess.run(line, cwd=self.root, env=environment(), capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"nbgrader {' '.join(words)}: {why(done.stdout + done.stderr)}")
        return time.monotonic() - began

    def hand_in(self, student: str, notebook: bytes) -> None:
        folder = self.root / "submitted" / student / self.lesson.unit
        folder.mkdir(parents=True)
        (folder / self.lesson.release.name).write_bytes(notebook)

    def marks(self, student: str) -> list[Mark]:
        with self._gradebook() as book:
            found = book.find_submission(self.lesson.unit, student).notebooks[0]
            shown = read_shown(shown_file(student, self.lesson.unit, self.lesson.name, self.root / "verdicts"))
            names = {cell.name: cell for cell in found.notebook.source_cells}
            return [
                Mark(
                    called(names[grade.name]),
                    grade.auto_score,
                    grade.max_score,
                    grade.needs_manual_grade,
                    shown.get(grade.name, {}).get("waits", ""),
                    names[grade.name].cell_type == "code",
                )
                for grade in found.grades
            ]

    def wrong_points(self) -> list[str]:
        """Cells whose points in the gradebook are not those of their exercise."""
        with self._gradebook() as book:
            notebook = book.find_assignment(self.lesson.unit).notebooks[0]
            asked = {cell.name: asked_by(cell) for cell in notebook.source_cells if cell.cell_type == "code"}
            cells = [cell for cell in notebook.grade_cells if isinstance(cell, GradeCell) and asked.get(cell.name)]
            given = {asked[cell.name]: cell.max_score for cell in cells}
        return wrong_points({(one.name, one.speed): points for one, points in given.items()}, self.lesson)

    def _gradebook(self) -> Gradebook:
        return Gradebook(f"sqlite:///{self.root / 'gradebook.db'}")


def wrong_points(given: dict[tuple[str, bool], float], lesson: Lesson) -> list[str]:
    """given: (exercise, whether for speed) -> points in the gradebook. A part of a lesson has some of its exercises."""
    unit = exercise.of_unit(lesson.name)
    wanted = {(one.name, False): one.points for one in unit}
    wanted |= {(one.name, True): one.speed.points for one in unit if one.speed}
    if lesson.part:
        wanted = {key: points for key, points in wanted.items() if key in given}
    said = []
    for name, speed in sorted(wanted.keys() | given.keys()):
        has, asked = given.get((name, speed)), wanted.get((name, speed))
        if has != asked:
            here, there = ("none" if points is None else f"{points:g}" for points in (has, asked))
            said.append(f"{Asked(name, speed)}: {here} points in the gradebook, {there} in the exercise")
    return said


@contextlib.contextmanager
def course(lesson: Lesson) -> Iterator[Course]:
    """The lesson in a gradebook of its own, and both hand-ins."""
    with tempfile.TemporaryDirectory(prefix="speed-of-light-") as folder:
        root = Path(folder)
        shutil.copy(COURSE / "nbgrader_config.py", root)
        ignored = shutil.ignore_patterns(".*", "__pycache__")
        source = root / "solutions" / lesson.unit
        shutil.copytree(lesson.script.parent, source, ignore=ignored)
        solved = lessons.to_text(lessons.read_script(lesson)).encode()
        (source / lesson.solution.name).write_bytes(solved)
        made = Course(root, lesson)
        made.nbgrader("generate_assignment", lesson.unit)
        shutil.copytree(lesson.release.parent, root / "notebooks" / lesson.unit, dirs_exist_ok=True, ignore=ignored)
        made.hand_in(SOLVED, solved)
        made.hand_in(UNTOUCHED, lesson.release.read_bytes())
        yield made


def short_of_all(marks: list[Mark], tier: str) -> list[str]:
    """What a solved lesson did not earn, but for what only a GPU can show and this machine has none."""
    return [
        f"{mark.name}: {mark.points or 0:g} of {mark.out_of:g} points{f', waits for {mark.for_whom}' * mark.waits}"
        for mark in marks
        if mark.by_machine and (mark.points or 0) < mark.out_of
        if not (tier != "gpu" and mark.waits and mark.for_whom == A_GPU)
    ]


def more_than_none(marks: list[Mark]) -> list[str]:
    """What an untouched lesson earned, and what would wait for a person for nothing."""
    earned = [f"{mark.name}: {many(mark.points, 'point')}" for mark in marks if mark.points]
    return earned + [f"{mark.name} waits for {mark.for_whom or 'a person'}" for mark in marks if mark.waits]


def waiting_for_a_gpu(marks: list[Mark]) -> list[str]:
    return [mark.name for mark in marks if mark.waits and mark.for_whom == A_GPU]
