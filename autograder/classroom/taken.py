"""The submissions of a lesson as they were taken in, for verbs that work beside nbgrader's own commands."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograder.classroom.handed_in import CODE, PERSON
from autograder.classroom.limited import BOARD
from autograder.classroom.verdicts import Judging, run_seed
from autograder.referee.submission import Submission
from course_lib.places import HOME, RELEASES

VERDICTS = HOME / "verdicts"
TAKEN = "verdicts/handed_in"  # below the course: what was handed in, as it was read


@dataclass(frozen=True, order=True)
class Item:
    """One notebook of one student."""

    student: str
    lesson: str
    notebook: str

    @property
    def path(self) -> Path:
        return HOME / TAKEN / self.student / self.lesson / f"{self.notebook}.ipynb"

    def code(self) -> Submission | None:
        """What is run of it; None where it could not be taken apart, which a person looks at."""
        about = self._about()
        return None if about.get(PERSON) or CODE not in about else Submission.of_data(about[CODE])

    def on_board(self) -> bool:
        """Whether the student may stand on the speed board: not before it is known that they do not mind."""
        return self._about().get(BOARD, False)

    def _about(self) -> dict:
        return json.loads(self.path.read_text(encoding="utf-8"))["metadata"]

    def judging(self, alone: bool = True) -> Judging | None:
        code = self.code()
        if code is None:
            return None
        return Judging(code, released(self.lesson, self.notebook), run_seed(VERDICTS, self.lesson), VERDICTS, alone)


@functools.cache
def released(lesson: str, notebook: str) -> NotebookNode:
    return nbformat.read(RELEASES / lesson / f"{notebook}.ipynb", as_version=4)


def notebooks(lesson: str) -> list[str]:
    """The released notebooks of a lesson; SystemExit with the lessons that there are where it is none of them."""
    found = sorted(path.stem for path in (RELEASES / lesson).glob("*.ipynb"))
    if not found or Path(lesson).name != lesson:
        known = ", ".join(sorted(path.parent.name for path in RELEASES.glob("*/*.ipynb")))
        raise SystemExit(f"No lesson is called {lesson!r}. There are {known}.")
    return found


def items(lesson: str) -> list[Item]:
    """What was taken in of a lesson, in the order of the students' names."""
    names = notebooks(lesson)
    folders = sorted(path for path in (HOME / TAKEN).glob(f"*/{lesson}") if not path.parent.name.startswith("."))
    return [
        Item(path.parent.name, lesson, name) for path in folders for name in names if (path / f"{name}.ipynb").exists()
    ]


@contextlib.contextmanager
def closed():
    """What is written meanwhile is its owner's alone."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
