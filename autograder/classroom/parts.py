"""`python -m autograder part 05_mlp b`: a part of a lesson as an assignment of its own, solutions/05b_mlp.

A lesson of several parts stays one script, one executed notebook and one page of the site. A cell with the tag `part-a`
begins part a, one with `part-every` what belongs to all of them; a tag holds until the next one. What comes before the
first tag belongs to all. The assignment that is written here is a lesson as any other: `make notebooks` releases it,
nbgrader and the referee find it by its name, students get it with `bundle 05b_mlp`. Write it again when the whole
lesson has changed.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import jupytext
import nbformat
from nbformat import NotebookNode

from autograder.classroom import lessons
from autograder.classroom.lessons import COURSE, Lesson

TAG, EVERY = "part-", "every"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lesson", help="05_mlp or mlp")
    parser.add_argument("part", help="a, b or c; its lesson's map says what each holds")


def main(args: argparse.Namespace) -> int:
    whole = next(one for one in lessons.find(COURSE, args.lesson) if not one.part)
    letters = parts_of(lessons.read_script(whole))
    if args.part not in letters:
        print(f"{whole.unit} has {'the parts ' + ', '.join(letters) if letters else 'no parts'}.")
        return 1
    made = written(whole, args.part)
    print(f"wrote {made.script.relative_to(COURSE)}. Next: make notebooks, which releases {made.unit}")
    return 0


def parts_of(notebook: NotebookNode) -> list[str]:
    """The letters of its parts, in order."""
    found = dict.fromkeys(_begins(cell) for cell in notebook.cells)
    return [letter for letter in found if letter not in ("", EVERY)]


def cells_of(notebook: NotebookNode, part: str) -> list[NotebookNode]:
    now, chosen = EVERY, []
    for cell in notebook.cells:
        now = _begins(cell) or now
        chosen += [cell] if now in (EVERY, part) else []
    return chosen


def written(whole: Lesson, part: str) -> Lesson:
    """The part as a lesson: its script, and its solution with the outputs of the whole one."""
    made = replace(whole, unit=f"{whole.unit[:2]}{part}_{whole.name}")
    notebook = lessons.read_script(whole)
    notebook.cells = cells_of(notebook, part)
    title, rest = notebook.cells[0].source.split("\n", 1)
    told = f"This is part {part.upper()} of lesson {whole.unit[:2]}, given out alone: of the map below that row counts."
    notebook.cells[0].source = f"{title} (part {part.upper()})\n\n{told}\n{rest}"
    made.script.parent.mkdir(exist_ok=True)
    script = jupytext.writes(notebook, fmt="py:percent")
    lessons.write_if_changed(made.script, script.encode())
    if whole.solution.exists():
        executed = nbformat.read(whole.solution, as_version=4)
        executed.cells = cells_of(executed, part)
        lessons.write_if_changed(made.solution, lessons.to_text(executed).encode())
        lessons.write_if_changed(made.solution, lessons.to_text(lessons.refresh(made)).encode())
    return made


def _begins(cell: NotebookNode) -> str:
    """The part that begins with this cell, or ""."""
    return next((tag.removeprefix(TAG) for tag in cell.metadata.get("tags", []) if tag.startswith(TAG)), "")
