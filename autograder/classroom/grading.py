"""The referee where nbgrader executes notebooks: nbgrader's own commands, marks decided out of the student's reach.

Autograde                nbgrader's own, over a folder that handed_in.take wrote: it opens nothing that was handed in
sanitize_preprocessors   TakenNotebook: refuses every notebook that was not written there
autograde_preprocessors  JudgedNotebook in place of Execute: no notebook is run, no kernel started;
                         SavedMarks in place of SaveAutoGrades: what waits goes to a person (marks.py)
"""

from __future__ import annotations

import contextlib
import sys
from datetime import datetime
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader import converters
from nbgrader.apps import api, autogradeapp
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Bool, List, Unicode
from traitlets.config import Config

from autograder.classroom import cohort
from autograder.classroom.handed_in import CODE, NOTES, PERSON, SEEN, time_of
from autograder.classroom.limited import Unread
from autograder.classroom.marks import outdated, read_shown, shown_file, tell
from autograder.classroom.taken import TAKEN, items
from autograder.classroom.verdicts import (
    A_PERSON,
    OUR_FAULT,
    UNREAD,
    Judging,
    asked_by,
    for_a_person,
    is_check,
    read,
    run_seed,
    same_for_everybody,
    trace,
    unjudged,
)
from autograder.referee import sandbox
from autograder.referee.referee import fingerprint
from autograder.referee.submission import Submission
from course_lib.places import HOME, RELEASES


def release_of(folder: str | Path, assignment: str, notebook: str) -> Path:
    return Path(folder) / assignment / f"{notebook}.ipynb"


class Autograde(converters.Autograde):
    """nbgrader's own command, and the button of formgrader, over folders that were written here."""

    only_known = Bool(False, help="leave out submissions that lack a verdict, and judge nothing").tag(config=True)
    again = List(Unicode(), help="grade these students alone, and of them nobody who handed in since").tag(config=True)

    def start(self) -> None:
        with contextlib.ExitStack() as held:
            try:
                sandbox.require()
                held.enter_context(cohort.only_one(Path(self.coursedir.root) / "verdicts" / ".grading"))
                waits, stay = cohort.begin(self.coursedir, TAKEN, self.force)
            except (sandbox.NoSandbox, OSError) as error:
                self.log.error("nbgrader autograde: refused. %s", error)
                raise NbGraderException(str(error)) from error
            if names := outdated(stay, self.coursedir.assignment_id, Path(self.coursedir.root) / "verdicts"):
                again = f"nbgrader autograde {self.coursedir.assignment_id} --force"
                said = "%s changed after some submissions were graded. Their marks stay; %s judges all of them again."
                self.log.warning(said, ", ".join(names), again)
            held.callback(setattr, self.coursedir, "submitted_directory", self.coursedir.submitted_directory)
            self.coursedir.submitted_directory = TAKEN
            self._stay, self._left_out = set(stay), set()
            if self.again:
                same = (one for one in self.again if cohort.is_as_graded(self.coursedir, TAKEN, one))
                self._left_out = {*waits, *stay}.difference(same)
            if self.only_known:
                unjudged = without_verdicts(self.coursedir.assignment_id)
                self._left_out.update(unjudged)
                self.update_config(Config(JudgedNotebook={"only_known": True}))
                if unjudged:
                    self.log.warning("Left out, for want of a verdict: %s", ", ".join(unjudged))
            held.callback(setattr, cohort, "progress", None)  # whoever writes marks next is not this run
            cohort.follow(self.coursedir, len(set(waits) - self._left_out))
            super().start()

    def init_destination(self, assignment_id: str, student_id: str) -> bool:
        """Whether this one is graded now. nbgrader by itself grades a second hand-in only where its time is later than
        that of the first; one that was copied in has none, and `collect --before-duedate` brings earlier ones."""
        if student_id in self._left_out:
            return False
        force = self.force
        self.force = student_id not in self._stay
        try:
            return super().init_destination(assignment_id, student_id)
        finally:
            self.force = force


def without_verdicts(lesson: str) -> list[str]:
    """Students of whom at least one exercise was not judged yet, on any tier."""
    judgings = ((item.student, item.judging()) for item in items(lesson))
    return sorted({student for student, judging in judgings if judging and judging.lacks("interpreter")})


def install() -> None:
    """Wherever nbgrader begins to autograde, it begins ours; and it reads times as we do, through no link."""
    for place in (autogradeapp, api):
        if not issubclass(place.Autograde, converters.Autograde):
            raise TypeError(f"{place.__name__} no longer says what autogrades")
        place.Autograde = Autograde
    CourseDirectory.get_existing_timestamp = lambda _, folder: time_of(Path(folder))
    api.NbGraderAPI.get_submitted_timestamp = submitted_at


def submitted_at(lists: api.NbGraderAPI, lesson: str, student: str) -> datetime | None:
    """For formgrader."""
    return time_of(Path(lists.coursedir.format_path(lists.coursedir.submitted_directory, student, lesson)))


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
    only_known = Bool(False, help="judge nothing of which there is a verdict, from whatever tier").tag(config=True)
    only = Unicode("", help="judge this exercise alone; the others keep the verdicts that they had").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict):
        names = resources["nbgrader"]
        released = nbformat.read(release_of(self.release, names["assignment"], names["notebook"]), as_version=4)
        seed, checks = run_seed(Path(self.verdicts), names["assignment"]), list(filter(is_check, nb.cells))
        code, person = nb.metadata.pop(CODE, None), nb.metadata.pop(PERSON, "")
        nb.metadata.pop(SEEN, None)
        before = self._before(names) if self.only else {}
        try:
            if person:
                raise Unread(person)
            if code is None:
                raise ValueError("the notebook could not be taken apart")
            with Judging(Submission.of_data(code), released, seed, Path(self.verdicts)) as judging:
                kept = []
                for cell, asked in zip(checks, map(asked_by, checks), strict=True):
                    earlier = before.get(cell.metadata.nbgrader["grade_id"])
                    if asked and earlier and asked.name != self.only and earlier["seed"] == fingerprint(judging.seed):
                        kept.append(earlier)
                    else:
                        known = judging.known(asked) if asked and self.only_known else None
                        kept.append(known or (judging.verdict(asked) if asked else UNKNOWN))
        except Unread as why:
            kept = [for_a_person(asked, UNREAD, str(why)) if asked else UNKNOWN for asked in map(asked_by, checks)]
        except OUR_FAULT as error:
            if same_for_everybody(error):
                raise
            trace()
            kept = [unjudged(asked, error) if asked else UNKNOWN for asked in map(asked_by, checks)]
        for cell, verdict in zip(checks, kept, strict=True):
            cell.outputs = outputs_of(verdict)
        endless = dict.fromkeys(said for verdict in kept for said in verdict.get("endless", ()))
        print(*(f"{names['student']}: {said}\n" for said in endless), sep="", end="", file=sys.stderr)
        tell(nb, [*nb.metadata.get(NOTES, []), *endless])
        return nb, resources

    def _before(self, names: dict) -> dict[str, dict]:
        """Check cell -> the verdict that decided its points in the last run."""
        folder = Path(self.verdicts)
        shown = read_shown(shown_file(names["student"], names["assignment"], names["notebook"], folder))
        found = {name: read(folder / one["verdict"]) for name, one in shown.items() if one.get("verdict")}
        return {name: verdict for name, verdict in found.items() if verdict}


# a grade cell that calls no check: nbgrader would give a silent cell all its points
UNKNOWN = {"points": 0.0, "out_of": 0.0, "waits": A_PERSON, "html": "This cell calls no check; a person grades it."}


def outputs_of(stored: dict) -> list[NotebookNode]:
    """A verdict as a check cell shows it: the report, and the bare number that nbgrader reads."""
    shown = {"text/plain": f"{stored['points']:g}", "text/html": stored["html"]}
    about = {"waits": stored["waits"], "verdict": stored.get("file", ""), "judged_by": stored.get("judged_by", "")}
    if stored["waits"] == A_PERSON:
        about["why"] = stored.get("why") or "".join(stored.get("text", [])[:1])
    return [new_output("execute_result", shown, execution_count=1, metadata={"speed_of_light": about})]
