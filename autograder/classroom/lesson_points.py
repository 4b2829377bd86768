"""`python -m autograder lessons`: every solution earns all its points here, every untouched release none."""

from __future__ import annotations

import argparse
import re

import nbformat
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from nbgrader import utils

from autograder import exercise
from autograder.classroom import execute, lessons
from autograder.classroom.lessons import COURSE, Lesson


def add_arguments(parser: argparse.ArgumentParser) -> None:
    execute.add_arguments(parser)
    parser.add_argument(
        "--changed", action="store_true", help="where outputs belong to the present source, read instead of running"
    )


def main(args: argparse.Namespace) -> int:
    wrong = []
    for lesson in lessons.find(COURSE, args.lesson):
        wrong += [f"{lesson.unit} solution: {line}" for line in solution_problems(lesson, args.changed)]
        wrong += [f"{lesson.unit} release: {line}" for line in release_problems(lesson)]
        print(f"{lesson.unit}: looked at solution and release", flush=True)
    print("\n".join(wrong) or "Every solution earns its points, no release earns any.")
    return 1 if wrong else 0


def solution_problems(lesson: Lesson, changed_only: bool) -> list[str]:
    """Grade cells of the solution that earn less than this machine can award."""
    if changed_only and lessons.is_current(lesson):
        notebook = lessons.refresh(lesson)
        has_gpu = notebook.metadata["speed_of_light"].get("tier", "gpu") == "gpu"
    else:
        from course_lib.device import TIER

        try:
            notebook = execute.run(lessons.read_script(lesson), lesson.script.parent)
        except CellExecutionError as stopped:
            return [f"stops with {stopped.ename}: {stopped.evalue}"]
        has_gpu = TIER == "gpu"
    return [
        f"{name} earned {got:g} of {most:g} points"
        for name, got, most, pending in earned(notebook)
        if got < most and not (pending and not has_gpu)
    ]


def release_problems(lesson: Lesson) -> list[str]:
    """Grade cells of the untouched release that earn anything."""
    if not lesson.release.exists():
        return ["is missing; run: make notebooks"]
    notebook = graded_part(nbformat.read(lesson.release, as_version=4))
    execute.run(notebook, lesson.release.parent, allow_errors=True)
    broken = [cell.outputs[-1].evalue for cell in notebook.cells if is_setup(cell) and utils.has_failed(cell)]
    if broken:
        return [f"its setup fails: {broken[0]}"]
    return [f"{name} earned {got:g} points untouched" for name, got, _, _ in earned(notebook) if got > 0]


def earned(notebook: NotebookNode) -> list[tuple[str, float, float, bool]]:
    """(grade_id, points, most, waits for a GPU) of each cell that is graded without a person, as nbgrader counts."""
    rows = []
    for cell in notebook.cells:
        if utils.is_grade(cell) and not utils.is_solution(cell):
            got, most = utils.determine_grade(cell)
            if not cell.outputs:  # nbgrader gives a silent cell everything; a check that answers nothing is broken
                got = 0.0
            rows.append((cell.metadata.nbgrader.grade_id, got, most, waits_for_gpu(cell.source)))
    return rows


def waits_for_gpu(source: str) -> bool:
    """Whether a grade cell asks for what only a GPU can show: speed, or an exercise of the GPU tier alone."""
    asked = re.search(r"""check(_speed)?\(\s*["']([\w.]+)["']""", source)
    return bool(asked and (asked.group(1) or exercise.get(asked.group(2)).tiers == ("gpu",)))


def graded_part(notebook: NotebookNode) -> NotebookNode:
    """Only what earns points: setup cells, solution cells and grade cells."""
    part = NotebookNode(notebook)
    part.cells = [
        cell
        for cell in notebook.cells
        if cell.cell_type == "code" and (is_setup(cell) or utils.is_solution(cell) or utils.is_grade(cell))
    ]
    return part


def is_setup(cell: NotebookNode) -> bool:
    return "setup" in cell.metadata.get("tags", [])
