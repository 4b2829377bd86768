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
from autograder.classroom.counted import many
from autograder.classroom.lessons import COURSE, Lesson


def add_arguments(parser: argparse.ArgumentParser) -> None:
    execute.add_arguments(parser)
    parser.add_argument(
        "--changed", action="store_true", help="lessons whose code means what it did: only the cells that earn points"
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
    """Grade cells of the solution that earn less than the machine could award that ran them."""
    notebook, problems = lessons.read_script(lesson), []
    if changed_only and lessons.is_current(lesson):
        kept = lessons.refresh(lesson)
        problems = missed(kept, kept.metadata["speed_of_light"].get("tier", "gpu"), " in the outputs that are kept")
        # Speed stands in the kept outputs: tests that share a GPU would slow each other down.
        notebook = without_speed(graded_part(notebook))
    from course_lib.device import TIER

    try:
        execute.run(notebook, lesson.script.parent)
    except CellExecutionError as stopped:
        return [*problems, f"stops with {stopped.ename}: {stopped.evalue}"]
    return [*problems, *missed(notebook, TIER)]


def missed(notebook: NotebookNode, tier: str, where: str = "") -> list[str]:
    """What is said of each grade cell that earned less than everything, unless only a GPU could show more."""
    return [
        f"{name} earned {got:g} of {most:g} points{where}"
        for name, got, most, pending in earned(notebook)
        if got < most and (tier == "gpu" or not pending)
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
    return [f"{name} earned {many(got, 'point')} untouched" for name, got, _, _ in earned(notebook) if got > 0]


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


def without_speed(notebook: NotebookNode) -> NotebookNode:
    part = NotebookNode(notebook)
    part.cells = [cell for cell in notebook.cells if not (utils.is_grade(cell) and "check_speed(" in cell.source)]
    return part


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
