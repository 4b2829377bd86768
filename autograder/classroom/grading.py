"""The referee where nbgrader executes notebooks: nbgrader's own commands, marks decided out of the student's reach.

Autograde                nbgrader's own, over a folder that handed_in.take wrote: it opens nothing that was handed in
sanitize_preprocessors   TakenNotebook: refuses every notebook that was not written there
autograde_preprocessors  JudgedNotebook in place of Execute: no notebook is run, no kernel started;
                         SavedMarks in place of SaveAutoGrades: what waits goes to a person (marks.py)
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader import converters
from nbgrader.apps import api, autogradeapp
from nbgrader.converters.base import NbGraderException
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Unicode

from autograder.classroom import cohort
from autograder.classroom.handed_in import CODE, NOTES, PERSON
from autograder.classroom.marks import outdated, tell
from autograder.classroom.verdicts import (
    A_PERSON,
    OUR_FAULT,
    Judging,
    asked_by,
    is_check,
    run_seed,
    same_for_everybody,
    trace,
    unjudged,
)
from autograder.referee import sandbox
from autograder.referee.submission import Submission
from course_lib.places import HOME, RELEASES

TAKEN = "verdicts/handed_in"  # below the course: what was handed in, as it was read


def release_of(folder: str | Path, assignment: str, notebook: str) -> Path:
    return Path(folder) / assignment / f"{notebook}.ipynb"


class Autograde(converters.Autograde):
    """nbgrader's own command, and the button of formgrader, over folders that were written here."""

    def start(self) -> None:
        with contextlib.ExitStack() as held:
            try:
                sandbox.require()
                held.enter_context(cohort.only_one(Path(self.coursedir.root) / "verdicts" / ".grading"))
                stay = cohort.begin(self.coursedir, TAKEN, self.force)
            except (sandbox.NoSandbox, OSError) as error:
                self.log.error("nbgrader autograde: refused. %s", error)
                raise NbGraderException(str(error)) from error
            if names := outdated(stay, self.coursedir.assignment_id, Path(self.coursedir.root) / "verdicts"):
                self.log.warning(
                    "%s changed after some submissions were graded. Their marks stay; --force judges them again.",
                    ", ".join(names),
                )
            held.callback(setattr, self.coursedir, "submitted_directory", self.coursedir.submitted_directory)
            self.coursedir.submitted_directory = TAKEN
            super().start()


def install() -> None:
    """Wherever nbgrader begins to autograde, it begins ours."""
    for place in (autogradeapp, api):
        if not issubclass(place.Autograde, converters.Autograde):
            raise TypeError(f"{place.__name__} no longer says what autogrades")
        place.Autograde = Autograde


class TakenNotebook(NbGraderPreprocessor):
    """The first step: whatever was not written by `handed_in.take` ends the grading of that submission."""

    def preprocess(self, nb: NotebookNode, resources: dict):
        names = resources["nbgrader"]
        if not Path(resources["metadata"]["path"]).match(f"{TAKEN}/{names['student']}/{names['assignment']}"):
            raise ValueError(f"{resources['metadata']['path']} was not written by handed_in.take")
        return nb, resources


class JudgedNotebook(NbGraderPreprocessor):
    """In place of Execute: every check cell gets the referee's verdict as its output."""

    release = Unicode(str(RELEASES), help="folder of the released lessons").tag(config=True)
    verdicts = Unicode(str(HOME / "verdicts"), help="folder of verdict files and of each run's seed").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict):
        names = resources["nbgrader"]
        released = nbformat.read(release_of(self.release, names["assignment"], names["notebook"]), as_version=4)
        seed, checks = run_seed(Path(self.verdicts), names["assignment"]), list(filter(is_check, nb.cells))
        code, person = nb.metadata.pop(CODE, None), nb.metadata.pop(PERSON, False)
        try:
            if person or code is None:
                raise ValueError("the notebook could not be taken apart")
            with Judging(Submission.of_data(code), released, seed, Path(self.verdicts)) as judging:
                kept = [judging.verdict(asked) if asked else UNKNOWN for asked in map(asked_by, checks)]
        except OUR_FAULT as error:
            if same_for_everybody(error):
                raise
            trace()
            kept = [unjudged(asked, error) if asked else UNKNOWN for asked in map(asked_by, checks)]
        for cell, verdict in zip(checks, kept, strict=True):
            cell.outputs = outputs_of(verdict)
        tell(nb, nb.metadata.get(NOTES, []))
        return nb, resources


# a grade cell that calls no check: nbgrader would give a silent cell all its points
UNKNOWN = {"points": 0.0, "out_of": 0.0, "waits": A_PERSON, "html": "This cell calls no check; a person grades it."}


def outputs_of(stored: dict) -> list[NotebookNode]:
    """A verdict as a check cell shows it: the report, and the bare number that nbgrader reads."""
    shown = {"text/plain": f"{stored['points']:g}", "text/html": stored["html"]}
    metadata = {"speed_of_light": {"waits": stored["waits"]}}
    return [new_output("execute_result", shown, execution_count=1, metadata=metadata)]
