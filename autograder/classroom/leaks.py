"""Whether a release tells answers: text of a solution, or what should not be in it at all. Cells in, sentences out.

And whether the code that students get beside it is one: a class or a function that earns points as it stands.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import multiprocessing
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor

from nbformat import NotebookNode

from autograder.call.in_process import examine
from autograder.classroom.lessons import KEPT_CELL_METADATA
from autograder.classroom.stubs import find_regions, stub_solutions, without_magics
from autograder.exercise import Exercise, get, of_unit

MARKS = ("BEGIN SOLUTION", "END SOLUTION", "BEGIN PREDICTION", "END PREDICTION", "HIDDEN TESTS", "MARK SCHEME")
SHORT = 8  # characters: such a line is written by everybody
# Share of a solution's characters in lines that one released cell holds too. Honest lessons reach 0.38: two exercises
# that both measure begin alike. Of files the course has more, and a line of a loop may stand in any: 0.73.
OF_A_CELL, OF_A_FILE = 0.5, 0.75
# Answer -> a file that students get because they build on it. Lesson 09 shows the naive tower: its walk through the
# blocks (0.83) stands in the tower that is asked for too, whose work is in the blocks and their operators.
GIVEN = {"capstone_tower": "course_lib/models/siglip/naive.py"}
LONG_S = 20  # for one class or function
FEWEST = 3  # lines, or statements: a shorter answer is written alike by everybody


def solutions(cells: Iterable[NotebookNode]) -> dict[str, list[list[str]]]:
    """What may not be shown: grade_id -> the lines of each region between the marks, or of an answer in words."""
    found = {}
    for cell in cells:
        if not cell.metadata.get("nbgrader", {}).get("solution"):
            continue
        lines = cell.source.splitlines()
        if cell.cell_type == "code":
            regions = find_regions(without_magics(cell.source), "BEGIN SOLUTION", "END SOLUTION")
            parts = [lines[first : last - 1] for first, last in regions]
            stub = {bare(line) for line in stub_solutions(cell.source).splitlines()}
        else:
            parts, stub = [[line for line in lines if not any(mark in line for mark in MARKS)]], set()
        told = [[bare(line) for line in part] for part in parts]
        found[cell.metadata.nbgrader.grade_id] = [
            [x for x in part if len(x) >= SHORT and x not in stub] for part in told
        ]
    return found


def text_of_solutions(script: NotebookNode, release: NotebookNode) -> list[str]:
    """Cells of the release that hold a solution: its marks, half of its lines, or its function under other names."""
    wrong = [f"cell {c.id} holds {mark!r}" for c in release.cells for mark in MARKS if mark in c.source]
    answers = solutions(script.cells)
    shapes = {shape: name for c in script.cells if is_solution(c) for name, shape in shapes_written(c.source)}
    for cell in release.cells:
        lines = {bare(line) for line in cell.source.splitlines()}
        for name, parts in answers.items():
            share = max((share_of(part, lines) for part in parts), default=0.0)
            if share >= OF_A_CELL:
                wrong.append(f"cell {cell.id} holds {share:.0%} of the solution of {name}")
        if cell.cell_type == "code":
            same = [shapes[shape] for _, shape in shapes_of(cell.source) if shape in shapes]
            wrong += [
                f"cell {cell.id} holds the function {name} of a solution, maybe with other names" for name in same
            ]
    return wrong


def text_in_files(script: NotebookNode, files: Mapping[str, str]) -> list[str]:
    """Files for students that hold three quarters of a solution, and are not given as what it builds on."""
    wrong, answers = [], solutions(script.cells)
    for name, text in files.items():
        lines = {bare(line) for line in text.splitlines()}
        for grade_id, parts in answers.items():
            share = max((share_of(part, lines) for part in parts if len(part) >= FEWEST), default=0.0)
            if share >= OF_A_FILE and name != GIVEN.get(grade_id):
                wrong.append(f"{name} holds {share:.0%} of the solution of {grade_id}")
    return wrong


def answers_in_modules(unit: str, names: Iterable[str]) -> list[str]:
    """Classes and functions of a lesson's exercises, in these files, that are an answer as they stand, a sentence each.

    Those count that get the cases right which hold an exercise's point. Kernels are not looked for: none stands in an
    exercise. Tried in a process of its own, since what is no answer may do anything.
    """
    own = [name for name in names if name.startswith(f"autograder/exercises/{unit}/")]
    written = [name.removesuffix(".py").replace("/", ".") for name in own]
    wrong = []
    for exercise in of_unit(unit):
        if exercise.kind == "scenario":
            with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as apart:
                wrong += apart.submit(_that_answer, exercise.name, written).result()
    return wrong


def _that_answer(name: str, modules: list[str]) -> list[str]:
    exercise = get(name)
    signal.signal(signal.SIGALRM, _took_too_long)
    found = _made_in(modules, exercise)
    return [f"{place} is an answer to {name}" for place, made in found if _is_answer(exercise, made)]


def _made_in(modules: list[str], exercise: Exercise) -> Iterator[tuple[str, Callable]]:
    kind = inspect.isclass if exercise.entry[0].isupper() else inspect.isfunction
    for module in modules:
        for name, made in inspect.getmembers(importlib.import_module(module), kind):
            if made.__module__ == module:
                yield f"{module}.{name}", made


def _is_answer(exercise: Exercise, made: Callable) -> bool:
    signal.alarm(LONG_S)
    try:
        return examine(exercise, made, 0, only=exercise.point or [case.name for case in exercise.cases]).accepted
    except Exception:
        return False
    finally:
        signal.alarm(0)


def _took_too_long(*_) -> None:
    raise TimeoutError


def what_a_release_may_not_hold(release: NotebookNode) -> list[str]:
    """Outputs, attachments, and notes that an editor keeps in a notebook."""
    wrong = [
        f"the notebook's metadata holds {key}" for key in release.metadata if key not in ("kernelspec", "language_info")
    ]
    for cell in release.cells:
        if cell.get("outputs") or cell.get("execution_count"):
            wrong.append(f"cell {cell.id} has outputs")
        if cell.get("attachments"):
            wrong.append(f"cell {cell.id} has attachments")
        wrong += [f"cell {cell.id} has metadata {key}" for key in cell.metadata if key not in KEPT_CELL_METADATA]
    return wrong


def bare(line: str) -> str:
    """Without blanks, and without the comment of a line of code."""
    return re.sub(r"\s+", "", line.partition("  # ")[0])


def share_of(part: list[str], lines: set[str]) -> float:
    whole = sum(map(len, part))
    return sum(len(line) for line in part if line in lines) / whole if whole else 0.0


def is_solution(cell: NotebookNode) -> bool:
    return cell.cell_type == "code" and bool(cell.metadata.get("nbgrader", {}).get("solution"))


def shapes_of(source: str) -> list[tuple[str, str]]:
    """Each function of a cell: its name, and what it does whatever its names are."""
    try:
        tree = ast.parse(without_magics(source))
    except (SyntaxError, ValueError):
        return []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [(one.name, shape_of(one)) for one in functions if statements_of(one) >= FEWEST]


def shapes_written(source: str) -> list[tuple[str, str]]:
    """Of a solution cell, those that the lesson does not give."""
    given = shapes_of(stub_solutions(source))
    return [one for one in shapes_of(source) if one not in given]


def statements_of(function: ast.FunctionDef) -> int:
    said = ast.get_docstring(function) is not None
    return sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1 - said


def shape_of(function: ast.FunctionDef) -> str:
    """Names are numbered in the order in which they come; attributes, operators and numbers count as they are."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    dumped = " ".join(ast.dump(node) for node in [function.args, *body])
    numbers: dict[str, str] = {}
    return re.sub(r"\b(id|arg|name)='(\w+)'", lambda m: numbers.setdefault(m[2], f"#{len(numbers)}"), dumped)
