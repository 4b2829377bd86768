"""formgrader's page of one submission, for a person who marks: what waits is open, the marking guide beside it.

Everything else is folded: a lesson has a hundred cells, and a person is asked about a few. Of what waits for a GPU the
graded cell alone is open. Without anything that waits, each graded cell has a fold of its own, so that a mark can still
be changed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path

import nbformat
from jinja2 import Environment
from nbconvert.exporters import HTMLExporter
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.server_extensions.formgrader import base, handlers
from nbgrader.utils import is_grade, is_solution

from autograder.classroom.counted import many
from autograder.classroom.marks import called, given_by_hand, speaks, waits_for
from autograder.classroom.verdicts import A_PERSON
from autograder.referee.submission import OWN

MARKS = "speed_of_light_marking"  # in a cell's metadata, for the template
TEMPLATES = Path(__file__).with_name("templates")
NAMES = ("student", "last_name", "first_name", "notebook_path")  # what a student or a roster chose


def install() -> None:
    """formgrader asks its handler for what makes a page."""
    handlers.SubmissionHandler.exporter = property(Pages)
    base.BaseHandler.render = _render


def _render(handler: base.BaseHandler, name: str, **values) -> str:
    """nbgrader's own, which writes names into its pages as they are."""
    return _escaping(handler.settings["nbgrader_jinja2_env"]).get_template(name).render(**values)


@functools.cache
def _escaping(environment: Environment) -> Environment:
    return environment.overlay(autoescape=True)


class Pages:
    """What makes the page of one submission."""

    def __init__(self, handler: handlers.SubmissionHandler):
        self.handler = handler
        config = handler.settings["nbgrader_exporter"].config.copy()
        config.HTMLExporter.template_name = "marking"
        config.HTMLExporter.extra_template_basedirs = [str(TEMPLATES), handlers.template_path]
        config.HTMLExporter.extra_template_paths = [handlers.template_path]  # by which ours extends nbgrader's
        self.exporter = HTMLExporter(config=config)

    def from_filename(self, filename: str, resources: dict) -> tuple[str, dict]:
        notebook = nbformat.read(filename, as_version=4)
        solved = Path(
            self.handler.coursedir.format_path(
                self.handler.coursedir.source_directory, ".", resources["assignment_id"]
            ),
            f"{resources['notebook_id']}.ipynb",
        )
        prepare(notebook, waiting(self.handler.gradebook, resources["submission_id"]), guides(solved))
        named = {name: escape(resources[name] or "") for name in NAMES}
        return self.exporter.from_notebook_node(notebook, resources=resources | named)


def waiting(book: Gradebook, submission: str) -> dict[str, str]:
    """Cell -> what a person has given for it so far."""
    found = book.find_submission_notebook_by_id(submission)
    return {grade.name: given_by_hand(grade) for grade in found.grades if grade.needs_manual_grade}


def guides(solved: Path) -> dict[str, str]:
    """Cell -> what the solved lesson says about its marks; nothing where that lesson is not here."""
    if not solved.is_file():
        return {}
    cells = nbformat.read(solved, as_version=4).cells
    answers = [cell for cell in cells if cell.cell_type == "markdown" and is_solution(cell)]
    return {cell.metadata.nbgrader.grade_id: without_marks(cell.source) for cell in answers}


def without_marks(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith(("### BEGIN", "### END")))


def prepare(notebook: NotebookNode, waits: Mapping[str, str], guide: Mapping[str, str]) -> None:
    """Say in each cell's metadata where a fold begins and ends, and which guide stands beside it."""
    for fold in folds(notebook.cells, opened(notebook.cells, waits)):
        fold[0].metadata[MARKS] = {"fold": title(fold)}
        fold[-1].metadata.setdefault(MARKS, {})["end"] = True
    for cell in notebook.cells:
        if name := name_of(cell):
            cell.metadata.setdefault(MARKS, {})["guide"] = guide.get(name, "")


def opened(cells: list[NotebookNode], waits: Mapping[str, str]) -> set[int]:
    """The places of cells that a person is asked about, and of the answers that they are about: those since the graded
    cell before, and for an answer in words the question, and all text that the student wrote in cells of their own."""
    shown, answers = set(), []
    own = {place for place, cell in enumerate(cells) if cell.metadata.get(OWN)}
    texts = {place for place in own if cells[place].cell_type == "markdown" and speaks(cells[place].source)}
    for place, cell in enumerate(cells):
        if is_solution(cell) and not is_grade(cell):
            answers.append(place)
        elif is_grade(cell):
            name = name_of(cell)
            if name in waits:
                shown.add(place)
                if waits[name] or waits_for(cell) in ("", A_PERSON):
                    shown |= {*answers}
                if is_solution(cell):
                    question = next((above for above in range(place - 1, -1, -1) if above not in own), place)
                    shown |= {question, *texts}
            answers = answers if same_answer(cells, place) else []
    return shown


def same_answer(cells: list[NotebookNode], place: int) -> bool:
    """Whether the next graded cell is about the same answer: points for speed follow those for being right."""
    after = next((cell for cell in cells[place + 1 :] if is_solution(cell) or is_grade(cell)), None)
    return after is not None and is_grade(after) and not is_solution(after)


def folds(cells: list[NotebookNode], shown: set[int]) -> Iterator[list[NotebookNode]]:
    """Neighbours that are not shown. A graded cell ends a fold, so that each fold tells of one at most."""
    fold: list[NotebookNode] = []
    for place, cell in enumerate(cells):
        if place in shown:
            if fold:
                yield fold
            fold = []
            continue
        fold.append(cell)
        if is_grade(cell) and not shown:
            yield fold
            fold = []
    if fold:
        yield fold


def title(fold: Iterable[NotebookNode]) -> str:
    """What lies in a fold: its first heading, and what is graded there."""
    fold = list(fold)
    lines = [line for cell in fold if cell.cell_type == "markdown" for line in cell.source.splitlines()]
    heading = next((line.lstrip("# ") for line in lines if line.startswith("#")), "")
    graded = [called(cell) for cell in fold if is_grade(cell)]
    about = f": {', '.join(graded)}" if graded else ""
    counted = many(len(fold), "cell")
    return f"{heading} ({counted}{about})" if heading else f"{counted}{about}"


def name_of(cell: NotebookNode) -> str:
    return cell.metadata.get("nbgrader", {}).get("grade_id", "")
