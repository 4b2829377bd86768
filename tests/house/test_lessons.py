"""Every lesson of the course: its three forms agree, it keeps to our limits, and its points are what they should be."""

import ast
import re
import subprocess
import sys

import jupytext
import nbformat
import pytest

from autograder import exercise
from autograder.classroom import lessons
from autograder.classroom.lessons import COURSE, environment
from autograder.classroom.stubs import find_regions, stub_solutions, without_magics
from autograder.classroom.verdicts import asked_by, is_check

FOUND = lessons.find()
SECRETS = ("BEGIN SOLUTION", "END SOLUTION", "HIDDEN TESTS", "MARK SCHEME")
MACHINE = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|usr|opt|Users)/|\d{4}-\d\d-\d\dT\d\d:\d\d|site-packages/site")

pytestmark = pytest.mark.skipif(not FOUND, reason="there are no lessons in solutions/ yet")
each_lesson = pytest.mark.parametrize("lesson", FOUND, ids=lambda lesson: lesson.unit)


def autograder(*words):
    command = [sys.executable, "-m", "autograder", *words]
    return subprocess.run(command, cwd=COURSE, env=environment(), capture_output=True, text=True)


def test_the_three_forms_of_every_lesson_agree():
    done = autograder("notebooks", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


@each_lesson
def test_the_solution_earns_its_points_and_the_release_none(lesson):
    done = autograder("lessons", lesson.unit, "--changed")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@each_lesson
def test_every_cell_of_the_solution_runs_here(lesson):
    done = autograder("lessons", lesson.unit)
    assert done.returncode == 0, done.stdout + done.stderr


@each_lesson
def test_the_course_has_everything_that_a_lesson_imports_from_it(lesson):
    """A moved definition does not make kept outputs old, so its new place is looked at here."""
    code = [cell.source for cell in lessons.read_script(lesson).cells if is_code(cell)]
    imports = [node for source in code for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    ours = [ast.unparse(node) for node in imports if node.module.partition(".")[0] in ("autograder", "course_lib")]
    assert ours
    for statement in ours:
        exec(statement, {})


def test_every_unit_of_exercises_has_a_lesson_and_every_lesson_a_row_of_the_readme():
    assert {lesson.name for lesson in FOUND} == set(exercise.UNITS)
    rows = re.findall(r"^\| \[(\d\d) .*?\]\((solutions/.*?)\)", (COURSE / "README.md").read_text(), re.MULTILINE)
    assert rows == [(lesson.unit[:2], str(lesson.solution.relative_to(COURSE))) for lesson in FOUND]


@each_lesson
def test_its_checks_ask_for_the_exercises_of_its_unit_in_their_order_for_their_points(lesson):
    checks = [cell for cell in nbformat.read(lesson.release, 4).cells if is_check(cell)]
    asked = [(asked_by(cell), cell.metadata.nbgrader.points) for cell in checks]
    exercises = exercise.of_unit(lesson.name)
    graded = [(one.name, points) for one, points in asked if not one.speed]
    assert graded == [(e.name, e.points) for e in exercises], "a check is missing, has other points or another place"
    timed = [(e.name, e.speed.points) for e in exercises if e.speed]
    got = [(one.name, points) for one, points in asked if one.speed]
    assert got == timed, "a check_speed is missing, has other points or another place"


@each_lesson
def test_the_release_holds_no_line_of_a_solution(lesson):
    released = lesson.release.read_text(encoding="utf-8")
    assert not [secret for secret in SECRETS if secret in released]
    stubs = {c.metadata.nbgrader.grade_id: c for c in nbformat.reads(released, 4).cells if "nbgrader" in c.metadata}
    for cell in lessons.read_script(lesson).cells:
        if cell.metadata.get("nbgrader", {}).get("solution"):
            name = cell.metadata.nbgrader.grade_id
            assert stubs[name].source == stub_of(cell), name
            for line in solution_lines(cell):
                assert line not in {s.strip() for s in stubs[name].source.splitlines()}, f"{name}: {line}"


def stub_of(cell) -> str:
    if cell.cell_type == "markdown":
        return "YOUR ANSWER HERE"
    assert any(mark in cell.source for mark in SECRETS), (
        f"mark what is the solution in {cell.metadata.nbgrader.grade_id}"
    )
    return stub_solutions(cell.source)


def solution_lines(cell) -> list[str]:
    lines = [line.strip() for line in cell.source.splitlines()]
    if cell.cell_type == "markdown":
        return [line for line in lines if line]
    kept = {line.strip() for line in stub_solutions(cell.source).splitlines()}
    regions = find_regions(without_magics(cell.source), "BEGIN SOLUTION", "END SOLUTION")
    inside = [line for first, last in regions for line in lines[first : last - 1]]
    return [line for line in inside if line and line not in kept]


def test_notebooks_hold_no_script_and_nothing_of_one_machine():
    released = sorted(path for path in (COURSE / "notebooks").rglob("*") if path.is_file())
    assert not [path for path in released if path.suffix == ".py"]
    for path in [*released, *(lesson.solution for lesson in FOUND)]:
        found = MACHINE.findall(path.read_text(encoding="utf-8"))
        assert not found, f"{path.relative_to(COURSE)}: {found[:3]}"


@each_lesson
def test_a_release_has_no_outputs_and_only_metadata_that_stays(lesson):
    notebook = nbformat.read(lesson.release, 4)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert set(notebook.metadata.language_info) == {"name"}
    for cell in notebook.cells:
        assert set(cell.metadata) <= set(lessons.KEPT_CELL_METADATA)
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@each_lesson
def test_cells_keep_to_their_limits(lesson):
    for cell in lessons.read_script(lesson).cells:
        if cell.cell_type == "code":
            limit = 60 if cell.metadata.get("nbgrader", {}).get("solution") else 25
            lines = cell.source.count("\n") + 1
            assert lines <= limit, f"{lines} lines, at most {limit}:\n{cell.source[:200]}"


@each_lesson
def test_a_lesson_carries_no_attached_pictures_and_no_hidden_tests(lesson):
    text = lesson.script.read_text(encoding="utf-8")
    assert not re.search(r"data:image|data:[a-z]+/[a-z+]+;base64|attachment:", text)
    assert "HIDDEN TESTS" not in text, "inputs are drawn afresh, so there is nothing to hide"
    for path in (lesson.solution, lesson.release):
        assert not [cell for cell in nbformat.read(path, 4).cells if cell.get("attachments")]


@each_lesson
def test_the_first_code_cell_is_setup_and_decides_where_kernels_run(lesson):
    first = next(cell for cell in jupytext.reads(lesson.script.read_text(), fmt="py:percent").cells if is_code(cell))
    assert "setup" in first.metadata.get("tags", [])
    assert first.source.startswith("from course_lib.device import")


@each_lesson
def test_no_script_in_prose_has_lost_the_start_of_its_first_line(lesson):
    """Jupytext takes `# # ` for one mark where `!` follows: a script for the shell begins with `# # #!/bin/bash`."""
    for cell in lessons.read_script(lesson).cells:
        assert not re.search(r"^```\w*\n!", cell.source, re.MULTILINE), cell.source[:200]


def is_code(cell) -> bool:
    return cell.cell_type == "code"
