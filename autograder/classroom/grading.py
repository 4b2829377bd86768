"""The referee where nbgrader executes notebooks: nbgrader's own commands, marks decided out of the student's reach.

pre_convert_hook         handed_in.readable(): damaged or misnamed notebooks are put right, the originals kept
sanitize_preprocessors   RepairedNotebook: the release with the student's cells in it
autograde_preprocessors  JudgedNotebook in place of Execute: no notebook is run, no kernel started;
                         PendingGrades after SaveAutoGrades: what waits for a GPU goes to a person
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import sys
import traceback
from dataclasses import dataclass
from html import escape
from pathlib import Path

import nbformat
import torch
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Unicode

from autograder import exercise as exercises
from autograder.classroom import cohort, report
from autograder.classroom.handed_in import NOTES, is_ours, notes_of
from autograder.inside.calling import quiet
from autograder.judging.verdict import SpeedVerdict, Verdict
from autograder.referee.referee import Referee
from autograder.referee.room import NoRoom
from autograder.referee.sandbox import NoSandbox
from autograder.referee.submission import OWN, Submission, code_of, repair, writable
from course_lib import device

ROOT = Path(__file__).resolve().parents[2]
PERSON = "speed_of_light_person"  # in a repaired notebook's metadata: nothing of it could be judged
WORDS = 20  # characters of a cell of text that may be somebody's answer


def release_of(folder: str | Path, assignment: str, notebook: str) -> Path:
    return Path(folder) / assignment / f"{notebook}.ipynb"


class RepairedNotebook(NbGraderPreprocessor):
    """The first step: whatever was submitted becomes the release with the student's cells in it."""

    release = Unicode(str(ROOT / "notebooks"), help="folder of the released lessons").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict):
        names = resources["nbgrader"]
        released = nbformat.read(release_of(self.release, names["assignment"], names["notebook"]), as_version=4)
        handed_in = Path(resources["metadata"]["path"]) / f"{names['notebook']}.ipynb"
        try:
            repaired, notes = repair(released, nb)
        except OUR_FAULT as error:
            trace()
            repaired, notes = released, [f"It could not be taken apart ({type(error).__name__}): a person should look."]
            released.metadata[PERSON] = True
        repaired = nbformat.from_dict(repaired)
        repaired.metadata[NOTES] = [*(notes_of(nb) if is_ours(handed_in) else []), *notes]
        return repaired, resources


class JudgedNotebook(NbGraderPreprocessor):
    """In place of Execute: every check cell gets the referee's verdict as its output."""

    release = Unicode(str(ROOT / "notebooks"), help="folder of the released lessons").tag(config=True)
    verdicts = Unicode(str(ROOT / "verdicts"), help="folder of verdict files and of each run's seed").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict):
        names = resources["nbgrader"]
        released = nbformat.read(release_of(self.release, names["assignment"], names["notebook"]), as_version=4)
        seed, checks = run_seed(Path(self.verdicts), names["assignment"]), list(filter(is_check, nb.cells))
        try:
            if nb.metadata.get(PERSON):
                raise ValueError("the notebook could not be taken apart")
            with Judging(code_of(nb), released, seed, Path(self.verdicts)) as judging:
                kept = [judging.verdict(asked) if asked else UNKNOWN for asked in map(asked_by, checks)]
        except OUR_FAULT as error:
            if same_for_everybody(error):
                raise
            trace()
            kept = [unjudged(asked, error) if asked else UNKNOWN for asked in map(asked_by, checks)]
        for cell, verdict in zip(checks, kept, strict=True):
            cell.outputs = outputs_of(verdict)
        if cohort.progress:
            cohort.progress.step(names["student"], kept)
        tell(nb, notes_of(nb))
        return nb, resources


class PendingGrades(NbGraderPreprocessor):
    """After SaveAutoGrades: a cell whose points wait for a GPU needs a person until they are there.

    So do all answers in words where the student has written some in a cell of their own: it may be the answer.
    """

    def preprocess(self, nb: NotebookNode, resources: dict):
        names = resources["nbgrader"]
        with Gradebook(names["db_url"]) as gradebook:
            wrote = any(cell.cell_type == "markdown" and is_own(cell) and len(cell.source) > WORDS for cell in nb.cells)
            for cell in nb.cells:
                if (is_check(cell) and is_pending(cell)) or (wrote and is_question(cell)):
                    grade_id = cell.metadata.nbgrader["grade_id"]
                    grade = gradebook.find_grade(grade_id, names["notebook"], names["assignment"], names["student"])
                    grade.needs_manual_grade = True
            gradebook.db.commit()
        return nb, resources


@dataclass(frozen=True)
class Asked:
    """What a check cell asks for."""

    name: str
    speed: bool


def is_check(cell: NotebookNode) -> bool:
    """A cell that is graded without a person."""
    marks = cell.metadata.get("nbgrader", {})
    return cell.cell_type == "code" and bool(marks.get("grade")) and not marks.get("solution")


def is_own(cell: NotebookNode) -> bool:
    return bool(cell.metadata.get(OWN))


def is_question(cell: NotebookNode) -> bool:
    """A cell whose words a person grades."""
    marks = cell.metadata.get("nbgrader", {})
    return bool(marks.get("grade")) and bool(marks.get("solution"))


def asked_by(cell: NotebookNode) -> Asked | None:
    """The exercise that a check cell names, read from its text and never run."""
    for node in ast.walk(ast.parse(cell.source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("check", "check_speed"):
            return Asked(ast.literal_eval(node.args[0]), node.func.id == "check_speed")
    return None


def tell(nb: NotebookNode, notes: list[str]) -> None:
    """What was put right, above the first verdict."""
    first = next(filter(is_check, nb.cells), None)
    if notes and first:
        told = "<br>".join(map(escape, notes))
        first.outputs.insert(0, new_output("display_data", {"text/html": f"<small>{told}</small>"}))


# a grade cell that calls no check: nbgrader would give a silent cell all its points
UNKNOWN = {"points": 0.0, "out_of": 0.0, "pending": True, "html": "This cell calls no check; a person grades it."}


# What the referee raises when it is itself wrong about what was handed in. A full disk raises something else.
OUR_FAULT = (TypeError, ValueError, LookupError, AttributeError, AssertionError, RuntimeError, MemoryError)


def same_for_everybody(error: Exception) -> bool:
    """Whether the next submission would meet the same: then the run ends, and begins again where it was."""
    if isinstance(error, (NoSandbox, NoRoom, torch.OutOfMemoryError)):
        return True
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:  # the GPU is gone
        return True
    return False


def trace() -> None:
    """For the instructor."""
    print(writable(traceback.format_exc()), file=sys.stderr)


def unjudged(asked: Asked, error: Exception) -> dict:
    """No points yet, and the reason: the referee's own fault costs nobody a grade."""
    exercise = exercises.get(asked.name)
    out_of = exercise.speed.points if asked.speed else exercise.points
    says = f"{asked.name}: the referee could not judge this, and that may be its own fault: a person grades it."
    why = writable(escape(f"{type(error).__name__}: {error}"[:300]))
    return {"points": 0.0, "out_of": out_of, "pending": True, "html": f"<p>{says}</p><p><small>{why}</small></p>"}


def outputs_of(stored: dict) -> list[NotebookNode]:
    """A verdict as a check cell shows it: the report, and the bare number that nbgrader reads."""
    shown = {"text/plain": f"{stored['points']:g}", "text/html": stored["html"]}
    metadata = {"speed_of_light": {"pending": stored["pending"]}}
    return [new_output("execute_result", shown, execution_count=1, metadata=metadata)]


def is_pending(cell: NotebookNode) -> bool:
    return any(out.get("metadata", {}).get("speed_of_light", {}).get("pending") for out in cell.outputs)


def run_seed(folder: Path, assignment: str) -> int:
    """One seed a grading run, the same for all students; delete the file to begin another run.

    Reports show a hash of it, so it is too long to be found by trying.
    """
    path = folder / f"{assignment}.seed"
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        drawn = path.with_suffix(f".{os.getpid()}")
        drawn.write_text(str(int.from_bytes(os.urandom(16), "little")))
        with contextlib.suppress(FileExistsError):  # another grader was first
            os.link(drawn, path)
        drawn.unlink()
    return int(path.read_text())


class Judging:
    """The verdicts of one submission: read where they are known, made in a sandbox where not."""

    def __init__(self, submission: Submission, release: NotebookNode, seed: int, folder: Path):
        self.submission, self.seed, self.folder = submission, seed, folder
        self.imports = imported_by(release)
        self.asked = list(filter(None, map(asked_by, filter(is_check, release.cells))))
        self.referee: Referee | None = None

    def __enter__(self) -> Judging:
        return self

    def __exit__(self, *error) -> None:
        if self.referee:
            self.referee.__exit__(*error)

    def verdict(self, asked: Asked) -> dict:
        path = self._path(asked)
        known = _read(path)
        if known is None:
            try:
                known = self._made(asked)
            except OUR_FAULT as error:
                if same_for_everybody(error):
                    raise
                trace()
                return unjudged(asked, error)  # not kept: grading again tries again
            beside = path.with_suffix(f".{os.getpid()}")
            beside.write_text(json.dumps(known), encoding="utf-8")
            os.replace(beside, path)
        return known

    def _made(self, asked: Asked) -> dict:
        exercise, referee = exercises.get(asked.name), self._referee()
        return stored((referee.examine_speed if asked.speed else referee.examine)(exercise, self.seed))

    def _referee(self) -> Referee:
        if self.referee is None:
            self.referee = Referee(self.submission, self.imports).__enter__()
            names = {asked.name for asked in self.asked if _read(self._path(asked)) is None}
            self.referee.examine_ahead(map(exercises.get, sorted(names)), self.seed)
        return self.referee

    def _path(self, asked: Asked) -> Path:
        return self.folder / f"{self._key(asked)}.json"

    def _key(self, asked: Asked) -> str:
        """The hash of all that a verdict depends on."""
        here = device.machine()
        parts = [[c.name, c.source] for c in self.submission.cells]
        parts += [asked.name, asked.speed, grader_hash(), here.name, here.torch, here.triton, self.seed]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _read(path: Path) -> dict | None:
    """A verdict that is known; one that a power cut left empty is not."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def stored(verdict: Verdict | SpeedVerdict) -> dict:
    """What a verdict file holds: the points, and the report in both forms."""
    is_speed = isinstance(verdict, SpeedVerdict)
    with quiet():
        return {
            "exercise": verdict.exercise,
            "tier": verdict.tier,
            "points": verdict.points,
            "out_of": verdict.out_of,
            "pending": verdict.pending,
            "text": [writable(line) for line in (report.speed_lines if is_speed else report.lines)(verdict)],
            "html": writable((report.speed_html if is_speed else report.html)(verdict)),
        }


def imported_by(release: NotebookNode) -> tuple[str, ...]:
    """Modules that the setup cells import, so that they are there before any worker starts."""
    found: list[str] = []
    for cell in release.cells:
        if cell.cell_type == "code" and "setup" in cell.metadata.get("tags", []):
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.Import):
                    found += [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.module:
                    found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(dict.fromkeys(name for name in found if not name.startswith("autograder")))


def grader_hash() -> str:
    """Changes when anything changes that decides a verdict."""
    files = sorted(path for room in ("autograder", "course_lib") for path in (ROOT / room).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
