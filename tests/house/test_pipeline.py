"""From the script that people edit to what students get, on a small course of its own."""

import json
import re

import nbformat
import pytest

from autograder.classroom import lessons
from course_lib import device

pytestmark = pytest.mark.xdist_group("pipeline")  # one worker builds the course


def change(course, old, new):
    text = course.script.read_text()
    assert old in text
    course.script.write_text(text.replace(old, new))


def refreshed(course):
    """The solution notebook as `notebooks` would write it."""
    return lessons.refresh(lessons.Lesson(course.root, course.script.parent.name))


def test_a_release_is_built_and_built_again_byte_for_byte(course):
    first = {p: p.read_bytes() for p in (course.root / "notebooks").rglob("*") if p.is_file()}
    assert {p.name for p in first} == {"start.ipynb", "numbers.json"}
    course.release.unlink()
    again = course.autograder("notebooks")
    assert again.stdout == "wrote notebooks/00_start/start.ipynb\n", again.stderr
    assert first == {p: p.read_bytes() for p in (course.root / "notebooks").rglob("*") if p.is_file()}


def test_a_release_keeps_the_solution_and_the_machine_to_itself(built):
    text = built.release.read_text()
    for secret in ("the-secret", str(built.root), "speed_of_light", '"version"', "jupytext"):
        assert secret not in text
    cells = {c.metadata.nbgrader.grade_id: c.source for c in nbformat.reads(text, 4).cells if "nbgrader" in c.metadata}
    assert cells["double"].splitlines() == [
        "def double(x):",
        '    """Twice x."""',
        '    raise NotImplementedError("not written yet")',
        "    return twice",
    ]
    assert cells["why"] == "YOUR ANSWER HERE"


def test_executed_outputs_name_no_path_and_what_their_code_meant(built):
    text = built.solution.read_text()
    assert "run in solutions/00_start" in text
    assert str(built.root) not in text
    assert re.fullmatch("[0-9a-f]{12}", nbformat.reads(text, 4).metadata.speed_of_light.meaning)


def test_a_new_cell_changes_no_other_id_and_a_changed_cell_loses_its_output(course):
    before = [cell.id for cell in nbformat.read(course.release, 4).cells]
    change(course, "# %% tags", "# %%\n2 + 2\n\n# %% tags")
    change(course, "return twice", "return +twice")
    course.autograder("notebooks")
    after = [cell.id for cell in nbformat.read(course.release, 4).cells]
    assert len(after) == len(before) + 1
    assert [name for name in after if name in before] == before
    cells = {c.source: c for c in nbformat.read(course.solution, 4).cells if c.cell_type == "code"}
    assert not cells["2 + 2"].outputs
    kept = next(cell for source, cell in cells.items() if source.startswith("sum("))
    assert kept.outputs[0].data["text/plain"] == "4"


def test_a_cell_that_is_wrapped_or_commented_keeps_its_output_and_one_with_another_constant_does_not(course):
    def output():
        return next(cell.outputs for cell in refreshed(course).cells if cell.source.startswith("sum("))

    change(course, "sum(double(x) == x + x for x in", "sum(  # all four\n    double(x) == x + x\n    for x in")
    assert output()[0].data["text/plain"] == "4"
    change(course, "for x in (1, 2, 3, 4)", "for x in (1, 2, 3, 5)")
    assert not output()


STACK = "# %%\nimport traceback\n\ntraceback.print_stack(limit=1)\n\n"


def test_an_output_that_quotes_lines_of_its_cell_goes_when_they_are_wrapped(course):
    def outputs(notebook):
        return next(cell.outputs for cell in notebook.cells if cell.source.startswith("import traceback"))

    change(course, "# %% [markdown] nb", f"{STACK}# %% [markdown] nb")
    notebook = refreshed(course)
    outputs(notebook).append(nbformat.v4.new_output("stream", text='  File "<cell>", line 3, in <module>\n'))
    nbformat.write(notebook, course.solution)
    assert outputs(refreshed(course))
    change(course, "import traceback\n\n", "import traceback\n\n\n")
    assert outputs(refreshed(course)) == []


@pytest.mark.slow
def test_a_traceback_that_is_kept_quotes_lines_of_its_cell(course):
    change(course, "# %% [markdown] nb", f"{STACK}# %% [markdown] nb")
    course.autograder("execute")
    cells = nbformat.read(course.solution, 4).cells
    assert "<cell>" in next(str(cell.outputs) for cell in cells if cell.source.startswith("import traceback"))


def test_missing_outputs_are_added_with_their_machine_and_the_others_stay(course):
    kept = nbformat.read(course.solution, 4)
    kept.metadata.speed_of_light |= {"machine": "Another card", "tier": "another tier"}
    first, second, *_ = [cell for cell in kept.cells if cell.cell_type == "code" and cell.outputs]
    first.outputs = [nbformat.v4.new_output("stream", name="stdout", text="of the other card")]
    second.outputs = []
    nbformat.write(kept, course.solution)
    done = course.autograder("execute", "--missing")
    assert done.returncode == 0, done.stderr
    now = nbformat.read(course.solution, 4)
    a, b, *_ = [cell for cell in now.cells if cell.id in (first.id, second.id)]
    assert a.outputs == first.outputs
    machine = device.machine().name
    assert b.outputs[-1].data["text/markdown"] == f"*Output of an {machine}; others of this lesson: Another card.*"
    whole = now.metadata.speed_of_light
    assert len(b.outputs) > 1 and (whole.machine, whole.tier) == ("Another card", "another tier")


@pytest.mark.slow
def test_where_a_lesson_stops_missing_keeps_what_came_before(course):
    change(course, "# %% tags", "# %%\n2 + 2\n\n# %%\nassert not 'reached'\n\n# %%\n3 + 3\n\n# %% tags")
    before = course.solution.read_text()
    assert course.autograder("execute").returncode and course.solution.read_text() == before
    assert course.autograder("execute", "--missing").returncode
    cells = {c.source: c.outputs for c in nbformat.read(course.solution, 4).cells if c.cell_type == "code"}
    assert cells["2 + 2"][0].data["text/plain"] == "4" and not cells["assert not 'reached'"] and not cells["3 + 3"]


def test_check_names_the_form_that_disagrees(course):
    notebook = json.loads(course.release.read_text())
    notebook["cells"][0]["source"] = ["# Another title"]
    course.release.write_text(json.dumps(notebook))
    found = course.autograder("notebooks", "--check")
    assert found.returncode == 1
    assert "notebooks/00_start/start.ipynb disagrees" in found.stdout
    assert "solutions/" not in found.stdout


@pytest.mark.slow
def test_check_names_the_solution_that_disagrees(course):
    change(course, "Lesson 00", "Lesson nought")
    found = course.autograder("notebooks", "--check")
    assert "solutions/00_start/start.ipynb disagrees" in found.stdout


@pytest.mark.slow
def test_a_solution_without_an_end_is_one_sentence(course):
    change(course, "    ### END SOLUTION\n", "")
    change(course, "# %% tags", "# %%\n%%bash\nls\n\n# %% tags")
    said = course.autograder("notebooks")
    assert said.returncode == 1 and not said.stderr
    assert said.stdout == "00_start, cell double, line 3: this BEGIN SOLUTION has no END SOLUTION.\n"


@pytest.mark.slow
def test_what_earns_points_is_run_again_and_the_rest_where_the_code_means_something_else(course):
    change(course, "import os\n", 'import json\nimport os\nTWO = json.load(open("numbers.json"))[1]\n')
    change(course, "2 * x  #", "TWO * x  #")
    change(course, "# %% [markdown] nb", "# %%\nassert TWO == 2\n\n# %% [markdown] nb")
    assert course.autograder("execute").returncode == 0
    (course.script.parent / "numbers.json").write_text("[1, 3]\n")
    change(course, "# the-secret", "# in other words, the-secret")
    same = course.autograder("lessons", "--changed").stdout
    assert "00_start solution: double_points earned 0 of 4 points\n" in same and "stops" not in same
    change(course, "assert TWO == 2", "assert TWO < 3")
    assert "00_start solution: stops with AssertionError" in course.autograder("lessons", "--changed").stdout


def test_points_are_counted_in_the_outputs_that_are_kept_too(course):
    course.solution.write_text(course.solution.read_text().replace('"4"', '"3"'))
    found = course.autograder("lessons", "start", "--changed")
    assert found.returncode == 1
    assert "00_start solution: double_points earned 3 of 4 points in the outputs that are kept\n" in found.stdout


@pytest.mark.slow
def test_speed_is_asked_for_only_where_the_outputs_come_from_a_gpu(course):
    timed = '# %% nbgrader={"grade": true, "grade_id": "speed", "locked": true, "points": 2, "schema_version": 3,'
    end = ' "solution": false, "task": false}\n0  # check_speed("roofline.softmax", softmax)\n\n# %% [markdown] nb'
    change(course, "# %% [markdown] nb", timed + end)
    course.autograder("execute")
    course.autograder("notebooks")
    text = course.solution.read_text()
    for tier, says in (("interpreter", "Every solution earns"), ("gpu", "speed earned 0 of 2 points")):
        course.solution.write_text(re.sub(r'"tier": "\w+"', f'"tier": "{tier}"', text))
        assert says in course.autograder("lessons", "--changed").stdout


@pytest.mark.slow
def test_a_solution_that_misses_a_point_and_a_release_that_gets_one_are_named(course):
    free = '# %% nbgrader={"grade": true, "grade_id": "free", "locked": true, "points": 1, "schema_version": 3,'
    change(course, "# %% [markdown] nb", free + ' "solution": false, "task": false}\n1\n\n# %% [markdown] nb')
    change(course, "2 * x  #", "x**2  #")
    course.autograder("notebooks")
    found = course.autograder("lessons", "--changed")
    assert found.returncode == 1
    assert "00_start solution: double_points earned 1 of 4 points" in found.stdout
    assert "00_start release: free earned 1 points untouched" in found.stdout
