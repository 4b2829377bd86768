"""A submitted notebook -> the student's code, and nothing else.

The release is the skeleton. From it come the setup cells and the order; from the submission come the text of the
solution cells and the student's own cells. Demonstration and check cells are never run, so it does not matter
whether they were edited, deleted, renamed, doubled or turned into something else.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from IPython.core.inputtransformer2 import TransformerManager

SETUP = "setup"
WATCHING = ("time", "timeit", "capture", "prun")


@dataclass(frozen=True)
class Cell:
    """One piece of code to run, under a name that tracebacks show."""

    name: str  # "setup 1", a grade_id, or "your cell 3"
    source: str


@dataclass(frozen=True)
class Submission:
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()  # what was repaired, in words for student and instructor
    demonstrated: frozenset[str] = field(default_factory=frozenset)  # names defined in demonstration cells only

    def missing(self, entry: str) -> str:
        """Why an exercise has no function to judge."""
        if entry in self.demonstrated:
            return (
                f"`{entry}` is defined only in a demonstration cell, and those are not part of a submission. "
                "Move it to the solution cell or to a cell of your own."
            )
        return f"`{entry}` is not defined by any solution cell or cell of your own."


def extract(release: Mapping, submitted: Mapping) -> Submission:
    """Both are notebooks as JSON gives them (nbformat 4)."""
    skeleton = [_Skeleton(cell, i) for i, cell in enumerate(release["cells"])]
    notes: list[str] = []
    texts, own = _sorted_out(skeleton, submitted["cells"], notes)
    cells = list(_in_order(skeleton, texts, own, notes))
    defined = set().union(*(_defines(cell.source) for cell in cells)) if cells else set()
    shown = [c.source for c in skeleton if c.is_demonstration]
    shown += [_text(c) for c in submitted["cells"] if c.get("id") in {s.id for s in skeleton if s.is_demonstration}]
    demonstrated = set().union(*(_defines(source) for source in shown)) - defined
    return Submission(tuple(cells), tuple(notes), frozenset(demonstrated))


class _Skeleton:
    """What one cell of the release is for."""

    def __init__(self, cell: Mapping, position: int):
        marks = _marks(cell)
        self.id = cell.get("id", f"at-{position}")
        self.grade_id = marks.get("grade_id")
        self.source = _text(cell)
        self.is_code = cell["cell_type"] == "code"
        self.is_setup = self.is_code and SETUP in cell.get("metadata", {}).get("tags", [])
        self.is_solution = self.is_code and bool(marks.get("solution"))
        self.is_demonstration = self.is_code and not (self.is_setup or self.is_solution or marks.get("grade"))


def _sorted_out(skeleton, submitted, notes) -> tuple[dict[str, str], dict[str | None, list[str]]]:
    """(grade_id -> the student's text, anchor -> the student's own cells that follow it)."""
    solutions = {c.grade_id for c in skeleton if c.is_solution}
    graded = {c.grade_id for c in skeleton if c.grade_id}
    ids = {c.id: c for c in skeleton}
    sources = {_bare(c.source) for c in skeleton if c.is_code}
    texts: dict[str, str] = {}
    own: dict[str | None, list[str]] = {}
    anchor = None
    for cell in submitted:
        grade_id, text = _marks(cell).get("grade_id"), _text(cell)
        known = ids.get(cell.get("id"))
        if grade_id in solutions:
            if grade_id in texts:
                notes.append(f"The cell {grade_id} is there twice; the last one counts.")
            if cell["cell_type"] != "code":
                notes.append(f"The cell {grade_id} is no longer a code cell; its text was read as code.")
            texts[grade_id] = text
            anchor = grade_id
        elif grade_id in graded or (known and not known.is_solution):
            anchor = grade_id or known.id
        elif known and known.is_solution and known.grade_id not in texts and cell["cell_type"] == "code":
            notes.append(f"The cell {known.grade_id} had lost its name; it was recognised by its id.")
            texts[known.grade_id] = text
            anchor = known.grade_id
        elif cell["cell_type"] == "code" and text.strip() and _bare(text) not in sources:
            own.setdefault(anchor, []).append(text)
    return texts, own


def _in_order(skeleton, texts, own, notes) -> Iterator[Cell]:
    """Setup and solution cells in the release's order, the student's own cells where the student put them."""
    setups = mine = 0
    for text in own.get(None, []):
        mine += 1
        yield Cell(f"your cell {mine}", as_python(text))
    for c in skeleton:
        if c.is_setup:
            setups += 1
            yield Cell(f"setup {setups}", as_python(c.source))
        elif c.is_solution:
            if c.grade_id not in texts:
                notes.append(f"The cell {c.grade_id} is missing; the empty one of the release stands in.")
            yield Cell(c.grade_id, as_python(texts.get(c.grade_id, c.source)))
        for text in own.get(c.grade_id or c.id, []):
            mine += 1
            yield Cell(f"your cell {mine}", as_python(text))


def as_python(source: str) -> str:
    """The cell as plain Python. Magics become calls of `get_ipython()`, which the worker answers with nothing.

    A cell magic that only watches (`%%time`) leaves its body to be run; any other (`%%bash`) takes it along.
    """
    first, _, rest = source.lstrip().partition("\n")
    if first.startswith("%%"):
        return "#\n" + rest if first[2:].split(" ")[0] in WATCHING else "pass"
    return TransformerManager().transform_cell(source)


def _defines(source: str) -> set[str]:
    """Names that a cell binds at its top level."""
    try:
        body = ast.parse(as_python(source)).body
    except SyntaxError:
        return set()
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in body:
        if isinstance(node, ast.Assign):
            names |= {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return names


def _marks(cell: Mapping) -> Mapping:
    marks = cell.get("metadata", {}).get("nbgrader", {})
    return marks if isinstance(marks, Mapping) else {}


def _text(cell: Mapping) -> str:
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)


def _bare(source: str) -> str:
    return re.sub(r"\s+", "", source)
