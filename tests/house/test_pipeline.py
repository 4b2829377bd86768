"""From the script that people edit to what students get, on a small course of its own."""

import json
import re

import nbformat


def test_a_release_is_built_and_built_again_byte_for_byte(course):
    made = course.autograder("notebooks")
    assert made.returncode == 0, made.stderr
    first = {p: p.read_bytes() for p in (course.root / "notebooks").rglob("*") if p.is_file()}
    assert {p.name for p in first} == {"start.ipynb", "numbers.json"}
    again = course.autograder("notebooks")
    assert again.stdout == "", "nothing changed, so nothing is written"
    assert first == {p: p.read_bytes() for p in (course.root / "notebooks").rglob("*") if p.is_file()}
    assert course.autograder("notebooks", "--check").returncode == 0


def test_a_release_keeps_the_solution_and_the_machine_to_itself(course):
    course.autograder("notebooks")
    text = course.release.read_text()
    for secret in ("the-secret", str(course.root), "speed_of_light", '"version"', "jupytext"):
        assert secret not in text
    cells = {c.metadata.nbgrader.grade_id: c.source for c in nbformat.reads(text, 4).cells if "nbgrader" in c.metadata}
    assert 'raise NotImplementedError("not written yet")' in cells["double"]
    assert cells["why"] == "YOUR ANSWER HERE"


def test_ids_of_cells_stay_when_a_cell_is_put_in_front(course):
    course.autograder("notebooks")
    before = [cell.id for cell in nbformat.read(course.release, 4).cells]
    course.script.write_text(course.script.read_text().replace("# %% tags", "# %%\n2 + 2\n\n# %% tags"))
    course.autograder("notebooks")
    after = [cell.id for cell in nbformat.read(course.release, 4).cells]
    assert len(after) == len(before) + 1
    assert [name for name in after if name in before] == before


def test_check_names_the_form_that_disagrees(course):
    course.autograder("notebooks")
    notebook = json.loads(course.release.read_text())
    notebook["cells"][0]["source"] = ["# Another title"]
    course.release.write_text(json.dumps(notebook))
    found = course.autograder("notebooks", "--check")
    assert found.returncode == 1
    assert "notebooks/00_start/start.ipynb disagrees" in found.stdout
    assert "solutions/" not in found.stdout
    course.script.write_text(course.script.read_text().replace("Lesson 00", "Lesson nought"))
    found = course.autograder("notebooks", "--check")
    assert "solutions/00_start/start.ipynb disagrees" in found.stdout


def test_executed_outputs_stay_with_their_source_and_name_no_path(course):
    course.autograder("notebooks")
    ran = course.autograder("execute", "start")
    assert ran.returncode == 0, ran.stderr
    text = course.solution.read_text()
    assert "run in solutions/00_start" in text
    assert str(course.root) not in text
    recorded = nbformat.reads(text, 4).metadata.speed_of_light
    assert re.fullmatch("[0-9a-f]{16}", recorded.executed_source)
    assert course.autograder("notebooks", "--check").returncode == 0
    course.script.write_text(course.script.read_text().replace("print(", "print('now', "))
    course.autograder("notebooks")
    cells = [c for c in nbformat.read(course.solution, 4).cells if c.cell_type == "code"]
    assert not cells[0].outputs, "its source changed"
    assert cells[2].outputs[0].data["text/plain"] == "4"


def test_a_solution_that_misses_a_point_and_a_release_that_gets_one_are_named(course):
    course.autograder("notebooks")
    good = course.autograder("lessons")
    assert good.returncode == 0, good.stdout + good.stderr
    script = course.script.read_text()
    course.script.write_text(script.replace("2 * x  #", "x**2  #").replace("return twice", "return twice"))
    course.autograder("notebooks")
    low = course.autograder("lessons")
    assert low.returncode == 1
    assert "00_start solution: double_points earned 1 of 4 points" in low.stdout
    course.script.write_text(script.replace("double(x) == x + x", "True"))
    course.autograder("notebooks")
    free = course.autograder("lessons", "00_start")
    assert free.returncode == 1
    assert "00_start release: double_points earned 4 points untouched" in free.stdout


def test_changed_lessons_are_run_and_the_others_are_read(course):
    course.autograder("notebooks")
    course.autograder("execute")
    kept = course.solution.read_text()
    course.solution.write_text(kept.replace('"4"', '"3"'))
    read = course.autograder("lessons", "--changed")
    assert "double_points earned 3 of 4 points" in read.stdout
    course.script.write_text(course.script.read_text().replace("print(", "print('now', "))
    assert course.autograder("lessons", "--changed").returncode == 0
