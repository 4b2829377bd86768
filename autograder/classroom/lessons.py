"""A lesson and its three forms: the script that people edit, the executed solution, the release.

solutions/NN_unit/unit.py  ->  solutions/NN_unit/unit.ipynb  ->  notebooks/NN_unit/unit.ipynb
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import jupytext
import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from course_lib.meaning import meaning_in_order
from course_lib.places import ROOT as COURSE

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
KEPT_CELL_METADATA = ("nbgrader", "tags", "deletable", "editable")


@dataclass(frozen=True)
class Lesson:
    root: Path  # the course folder
    unit: str  # "01_roofline", which is also nbgrader's name of the assignment; "05b_mlp" is a part of one

    @property
    def name(self) -> str:
        return self.unit.split("_", 1)[1]

    @property
    def part(self) -> str:
        """ "b" of 05b_mlp, which `python -m autograder part` has written; "" of a whole lesson."""
        return self.unit.split("_", 1)[0][2:]

    @property
    def script(self) -> Path:
        return self.root / "solutions" / self.unit / f"{self.name}.py"

    @property
    def solution(self) -> Path:
        return self.script.with_suffix(".ipynb")

    @property
    def release(self) -> Path:
        return self.root / "notebooks" / self.unit / f"{self.name}.ipynb"


def find(root: Path = COURSE, unit: str = "") -> list[Lesson]:
    """Every lesson of the course in order, or only the one that is named."""
    folders = sorted(p.name for p in (root / "solutions").glob("[0-9][0-9]*_*") if p.is_dir())
    lessons = [Lesson(root, name) for name in folders]
    lessons = [lesson for lesson in lessons if lesson.script.exists()]
    if not unit:
        return lessons
    chosen = [lesson for lesson in lessons if unit in (lesson.unit, lesson.name)]
    if not chosen:
        raise SystemExit(f"no lesson is called {unit!r}; there are {', '.join(x.unit for x in lessons) or 'none'}")
    return chosen


def read_script(lesson: Lesson) -> NotebookNode:
    """The lesson as a notebook without outputs."""
    notebook = jupytext.reads(lesson.script.read_text(encoding="utf-8"), fmt="py:percent")
    tidy(notebook)
    notebook.metadata = NotebookNode(kernelspec=dict(KERNEL), language_info={"name": "python"})
    return notebook


def refresh(lesson: Lesson) -> NotebookNode:
    """The solution notebook as it should be: the script's cells, with the outputs whose code did not change."""
    notebook = read_script(lesson)
    if not lesson.solution.exists():
        return notebook
    before = nbformat.read(lesson.solution, as_version=4)
    outputs: dict[str, list[NotebookNode]] = {}
    for cell in before.cells:
        if cell.cell_type == "code":
            quoted = "<cell>" in str(cell.outputs)  # a traceback names lines of the cell and shows their text
            outputs.setdefault((text if quoted else syntax)(cell.source), []).append(cell)
    for cell in notebook.cells:
        same = cell.cell_type == "code" and (outputs.get(text(cell.source)) or outputs.get(syntax(cell.source)))
        if same:
            old = same.pop(0)
            cell.outputs, cell.execution_count = old.outputs, old.execution_count
    if "speed_of_light" in before.metadata:
        notebook.metadata["speed_of_light"] = before.metadata["speed_of_light"]
    return notebook


def text(source: str) -> str:
    """A cell without words that are for the formatter."""
    return source.replace("  # fmt: skip", "")


@lru_cache(maxsize=4096)
def syntax(source: str) -> str:
    """A cell without what cannot change its outputs: line breaks, comments, quotes. Every constant counts."""
    try:
        return ast.dump(ast.parse(TransformerManager().transform_cell(source)))
    except SyntaxError:
        return source


def meaning(notebook: NotebookNode) -> str:
    """Changes when code means something else; words, comments and moved files ask for no new run of the lesson."""
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return meaning_in_order(map(TransformerManager().transform_cell, cells))  # magics become calls


def is_current(lesson: Lesson) -> bool:
    """Whether the code that made the solution notebook's outputs meant what the script means now."""
    if not lesson.solution.exists():
        return False
    recorded = nbformat.read(lesson.solution, as_version=4).metadata.get("speed_of_light", {})
    try:
        return recorded.get("meaning") == meaning(read_script(lesson))
    except SyntaxError:
        return False


def tidy(notebook: NotebookNode) -> None:
    """Take out what differs from machine to machine and give every cell an id that stays."""
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        cell.metadata = NotebookNode({k: v for k, v in cell.metadata.items() if k in KEPT_CELL_METADATA})
        name = cell_id(cell)
        seen[name] = seen.get(name, 0) + 1
        cell["id"] = name if seen[name] == 1 else f"{name}-{seen[name]}"
    kept = {k: v for k, v in notebook.metadata.items() if k in ("kernelspec", "speed_of_light")}
    notebook.metadata = NotebookNode(kept, language_info={"name": "python"})
    notebook.nbformat, notebook.nbformat_minor = 4, 5


def cell_id(cell: NotebookNode) -> str:
    """From the grade_id where there is one, else from the text, so that a new cell changes no other cell's id."""
    grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
    if grade_id:
        return re.sub(r"[^A-Za-z0-9_-]", "-", grade_id)[:56]
    return hashlib.sha256(f"{cell.cell_type}\0{cell.source}".encode()).hexdigest()[:12]


def to_text(notebook: NotebookNode) -> str:
    """The one way a notebook is written: sorted keys, one space, a newline at the end."""
    return nbformat.writes(notebook, version=4).rstrip("\n") + "\n"


def write_if_changed(path: Path, content: bytes) -> bool:
    """Replace a file in one step, and leave it alone when nothing changed."""
    if path.exists() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(content)
    os.replace(beside, path)
    return True
