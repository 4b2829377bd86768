"""The gradebook after a run: the referee's points, marks by hand that still hold, and what waits for whom.

nbgrader keeps a mark by hand whatever happens later, and asks for it again after every run. Here each run keeps what a
cell showed: a hash of the answer, the points, for whom they wait. While the next run shows the same, a mark by hand
holds and nobody is asked. When it shows something else, a person is asked, and the reason is told.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.api import Grade, Gradebook, SubmittedNotebook
from nbgrader.preprocessors import SaveAutoGrades
from nbgrader.utils import determine_grade
from traitlets import Unicode

from autograder.classroom import cohort
from autograder.classroom.counted import many
from autograder.classroom.report import marked
from autograder.classroom.verdicts import A_PERSON, ROOT, UNREAD, Asked, asked_by, grader_hash, is_check
from autograder.exercise import find
from autograder.referee.submission import OWN

WORDS = 20  # characters: a longer cell of text may be somebody's answer, and so may a shorter one that is no heading
HEADING = re.compile(r"\s*#|[\W_]*$")  # or a line that has no letters
VERDICTS = ROOT / "verdicts"
TOLD = "told"  # in an output's metadata: `tell` wrote it


class SavedMarks(SaveAutoGrades):
    """In place of nbgrader's own. A person is asked for points that wait, and for all answers in words where the
    student has written some in a cell of their own, which may be the answer, or where nothing could be read."""

    verdicts = Unicode(str(VERDICTS), help="folder of verdict files, where what was shown lies too").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict):
        names = resources["nbgrader"]
        path = shown_file(names["student"], names["assignment"], names["notebook"], Path(self.verdicts))
        self.before, self.now, self.rows = read_shown(path), {}, []
        mine = [cell for cell in nb.cells if cell.metadata.get(OWN) or _is_answer(cell)]
        self.code = [c.source for c in mine if c.cell_type == "code"]
        own = [c.source for c in mine if c.cell_type == "markdown" and c.metadata.get(OWN)]
        self.words = [source for source in own if speaks(source)]
        self.unread = any(UNREAD in _told(cell, "why") for cell in nb.cells)
        nb, resources = super().preprocess(nb, resources)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(self.now), encoding="utf-8")
        os.replace(beside, path)  # after the gradebook: a run that was killed before this one asks again
        tell(nb, [f"{name}: {shown['asks']}" for name, shown in self.now.items() if shown["asks"]])
        if cohort.progress:
            cohort.progress.step(names["student"], self.rows)
        return nb, resources

    def _add_score(self, cell: NotebookNode, resources: dict) -> None:
        name, words = cell.metadata.nbgrader["grade_id"], _is_answer(cell)
        grade = self.gradebook.find_grade(name, self.notebook_id, self.assignment_id, self.student_id)
        given, before = given_by_hand(grade), self.before.get(name)
        settled = not grade.needs_manual_grade  # when a person gives a mark, formgrader says so
        grade.auto_score, out_of = determine_grade(cell, self.log)
        by_hand = grade.auto_score is None or (words and (self.words or self.unread))
        waits = waits_for(cell) or (A_PERSON if by_hand else "")
        now = {"answer": _hash([cell.source, *self.words] if words else self.code)}
        now |= {"points": grade.auto_score, "waits": waits, "why": _told(cell, "why"), "asks": ""}
        if given:
            now["asks"] = _asks(given, before, now, settled)
        # extra credit comes on top of what is still to be measured; a mark by hand stands in its place
        grade.needs_manual_grade = bool(now["asks"] or (waits and grade.manual_score is None))
        self.gradebook.db.commit()
        asked = asked_by(cell) if is_check(cell) else None
        self.now[name] = now | (_about(cell, asked) if asked else {})
        if is_check(cell):
            self.rows.append((called(cell), grade.score, out_of, grade.needs_manual_grade))

    def _add_comment(self, cell: NotebookNode, resources: dict) -> None:
        """nbgrader says "No response." of an answer that was left empty; words may stand in a cell of the student's."""
        super()._add_comment(cell, resources)
        if self.words and cell.cell_type == "markdown":
            where = cell.metadata.nbgrader["grade_id"], self.notebook_id, self.assignment_id, self.student_id
            self.gradebook.find_comment(*where).auto_comment = None
            self.gradebook.db.commit()


def speaks(source: str) -> bool:
    """Whether a cell of text may be somebody's answer."""
    return len(source) > WORDS or not HEADING.match(source)


def given_by_hand(grade: Grade) -> str:
    """What a person gave, or ""."""
    mark, extra = grade.manual_score, grade.extra_credit
    said = [f"a mark by hand of {many(mark, 'point')}"] if mark is not None else []
    return " and ".join([*said, *([f"extra credit of {many(extra, 'point')}"] if extra else [])])


def _asks(given: str, before: dict | None, now: dict, settled: bool) -> str:
    """Why a person should look at what was given by hand again, or ""."""
    said = f"There is {given}, "
    ends = " A person decides; until then it counts."
    if before is None:
        return f"{said}and it is not known for which answer it was given.{ends}"
    if now["answer"] != before["answer"]:
        return f"{said}given for an earlier answer.{ends}"
    if (now["points"], now["waits"]) != (before["points"], before["waits"]):
        return f"{said}given when the referee said: {_said(before)}. Now it says: {_said(now)}.{ends}"
    return "" if settled else before["asks"]


def _said(shown: dict) -> str:
    return f"this waits for {shown['waits']}" if shown["waits"] else many(shown["points"], "point")


def called(cell) -> str:
    """The exercise that a cell is graded for, as people call it; of an answer in words, the name of its cell. Cells of
    a notebook and those that the gradebook keeps of a lesson will both do."""
    asked = asked_by(cell) if cell.cell_type == "code" else None
    if asked is None:
        return cell.name if hasattr(cell, "name") else cell.metadata.nbgrader["grade_id"]
    return str(asked)


def waiting(notebook: SubmittedNotebook, verdicts: Path = VERDICTS) -> list[str]:
    """What still waits in a submission, and for whom, in the order of the lesson."""
    student, lesson = notebook.assignment.student.id, notebook.assignment.assignment.name
    shown = read_shown(shown_file(student, lesson, notebook.name, verdicts))
    names = {cell.name: called(cell) for cell in notebook.notebook.source_cells}
    waits = {grade.name for grade in notebook.grades if grade.needs_manual_grade}
    places = [name for name in shown if name in waits] + sorted(waits - shown.keys())
    return [f"{names.get(name, name)} ({_for_whom(shown.get(name))})" for name in places]


def why_it_waits(notebook: SubmittedNotebook, verdicts: Path = VERDICTS) -> list[str]:
    """The different reasons why a person is asked, as far as they are known."""
    student, lesson = notebook.assignment.student.id, notebook.assignment.assignment.name
    shown = read_shown(shown_file(student, lesson, notebook.name, verdicts))
    waits = [shown.get(grade.name, {}) for grade in notebook.grades if grade.needs_manual_grade]
    return sorted({why for one in waits if (why := one.get("asks") or one.get("why", ""))})


def _for_whom(shown: dict | None) -> str:
    return shown["waits"] if shown and shown["waits"] and not shown["asks"] else A_PERSON


def outdated(students: Iterable[str], lesson: str, verdicts: Path = VERDICTS) -> list[str]:
    """Exercises that changed since somebody's points for them were given."""
    files = [path for student in students for path in shown_file(student, lesson, "*", verdicts).parent.glob("*.json")]
    shown = [one for path in files for one in read_shown(path).values() if "exercise" in one]
    given = {(one["exercise"], one["judged_by"]) for one in shown}
    return sorted({name for name, judged_by in given if find(name) and judged_by != grader_hash(name)})


def waits_for(cell: NotebookNode) -> str:
    """For whom the points of a check cell wait, or ""."""
    return _told(cell, "waits")


def _about(cell: NotebookNode, asked: Asked) -> dict:
    """Which verdict a check cell shows, and which version of the exercise made it."""
    judged_by = _told(cell, "judged_by") or grader_hash(asked.name)
    return {"exercise": asked.name, "judged_by": judged_by, "verdict": _told(cell, "verdict")}


def _told(cell: NotebookNode, what: str) -> str:
    return "".join(out.get("metadata", {}).get("speed_of_light", {}).get(what, "") for out in cell.get("outputs", ()))


def tell(nb: NotebookNode, notes: Iterable[str]) -> None:
    """What people should know, above the first verdict."""
    first, text = next(filter(is_check, nb.cells), None), told(notes)
    if first and text:
        about = {"speed_of_light": {TOLD: "yes"}}
        first.outputs.insert(0, new_output("display_data", {"text/html": text}, metadata=about))


def taken_out(nb: NotebookNode) -> list[str]:
    """What `tell` wrote, as HTML; it is gone from the notebook then."""
    found = []
    for cell in filter(is_check, nb.cells):
        mine = [one for one in cell.outputs if one.get("metadata", {}).get("speed_of_light", {}).get(TOLD)]
        cell.outputs = [one for one in cell.outputs if one not in mine]
        found += [one.data["text/html"] for one in mine]
    return found


def told(notes: Iterable[str]) -> str:
    text = "<br>".join(map(marked, notes))
    return f"<small>{text}</small>" if text else ""


@dataclass(frozen=True)
class InBook:
    """What the gradebook has of a graded cell."""

    points: float  # with what was given by hand
    by_hand: str  # what was, or ""
    waits: bool  # somebody decides still


def in_book(gradebook: Gradebook | None, lesson: str, student: str = "") -> dict[tuple[str, str, str], InBook]:
    """By student, notebook and cell."""
    if gradebook is None:
        return {}
    with gradebook:
        found = [one for one in gradebook.assignments if one.name == lesson]
        everybody = [one for assignment in found for one in assignment.submissions]
        return {
            (one.student.id, notebook.name, grade.name): InBook(
                grade.score, given_by_hand(grade), grade.needs_manual_grade
            )
            for one in everybody
            if student in ("", one.student.id)
            for notebook in one.notebooks
            for grade in notebook.grades
        }


def shown_file(student: str, lesson: str, notebook: str, verdicts: Path) -> Path:
    return verdicts / "shown" / student / lesson / f"{notebook}.json"


def read_shown(path: Path) -> dict[str, dict]:
    """What each graded cell showed after the last run; nothing where that is not known."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}


def _is_answer(cell: NotebookNode) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get("solution"))


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256(json.dumps([*parts]).encode()).hexdigest()[:16]
