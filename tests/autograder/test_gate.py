"""`release-check`: every line of its page can fail, and what is right passes."""

import argparse
import copy
import re
import shutil
import subprocess

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from autograder.classroom import bundle, gate, leaks, lessons, notebooks, rehearsal
from autograder.classroom.lessons import Lesson
from autograder.classroom.rehearsal import Mark
from course_lib.results import ROOT

UNIT = "00_start"
LESSON = Lesson(ROOT, UNIT)
SCRIPT, RELEASE = lessons.read_script(LESSON), nbformat.read(LESSON.release, as_version=4)
HELD = bundle.contents([LESSON])
KERNEL = next(c for c in SCRIPT.cells if "BEGIN SOLUTION" in c.source and "@triton.jit" in c.source)
bubblewrapped = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    """Lesson 00 in a course of its own, to be spoiled."""
    for room in ("solutions", "notebooks"):
        shutil.copytree(ROOT / room / UNIT, tmp_path / room / UNIT, ignore=shutil.ignore_patterns(".*"))
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    for module in (notebooks, gate):
        monkeypatch.setattr(module, "COURSE", tmp_path)
    return Lesson(tmp_path, UNIT)


def with_cell(cell):
    spoiled = copy.deepcopy(RELEASE)
    spoiled.cells.insert(3, cell)
    return spoiled


def replaced(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


# ------------------------------------------------------------------------------------------- the text


def forms(lesson):
    return gate.forms(*gate.built(lesson)).wrong


def test_a_release_or_a_solved_notebook_that_the_script_does_not_make_is_named(lesson):
    assert forms(lesson) == ()
    replaced(lesson.release, '"cells"', ' "cells"')
    assert forms(lesson) == (f"notebooks/{UNIT}/start.ipynb differs: make notebooks",)
    replaced(lesson.script, "# %% [markdown]", "# %% [markdown]\n# Another sentence.\n#")
    assert len(forms(lesson)) == 2


def test_a_script_of_which_nothing_can_be_released_is_told(lesson):
    unmarked = lesson.script.read_text()
    replaced(lesson.script, 'solution": true', 'solution": false')
    assert "nbgrader makes no release of it" in forms(lesson)[0]
    lesson.script.write_text(unmarked)
    replaced(lesson.script, "### END SOLUTION", "")
    assert "END SOLUTION" in forms(lesson)[0]
    assert len(list(gate.looked_at(lesson))) == 1


def test_a_released_lesson_shows_no_solution():
    assert gate.solution_text(SCRIPT, RELEASE).wrong == ()


def test_a_solution_in_a_demonstration_cell_is_found():
    lines = KERNEL.source.split("### BEGIN SOLUTION\n")[1].split("### END")[0]
    (says,) = gate.solution_text(SCRIPT, with_cell(new_code_cell(lines, id="shown"))).wrong
    assert says.startswith("cell shown holds 100% of the solution of ")


def test_a_solution_under_other_names_is_found():
    solved = "def mine(a, b):\n    c = a + b\n    for d in range(c):\n        c += d\n    return c"
    script = nbformat.v4.new_notebook(
        cells=[answer(f"def total(x, y):\n    ### BEGIN SOLUTION\n{BODY}    ### END SOLUTION")]
    )
    (says,) = leaks.text_of_solutions(script, nbformat.v4.new_notebook(cells=[new_code_cell(solved, id="shown")]))
    assert says == "cell shown holds the function total of a solution, maybe with other names"
    other = solved.replace("c += d", "c -= d")
    assert not leaks.text_of_solutions(script, nbformat.v4.new_notebook(cells=[new_code_cell(other)]))


BODY = "    first = x + y\n    for i in range(first):\n        first += i\n    return first\n"


def answer(source):
    return new_code_cell(source, metadata={"nbgrader": {"solution": True, "grade_id": "total"}})


def test_a_mark_or_a_marking_guide_in_a_release_is_found():
    marked = with_cell(new_code_cell("x = 1\n### BEGIN SOLUTION", id="marked"))
    assert gate.solution_text(SCRIPT, marked).wrong == ("cell marked holds 'BEGIN SOLUTION'",)
    guide = next(c for c in SCRIPT.cells if c.cell_type == "markdown" and c.metadata.get("nbgrader"))
    words = re.sub("### .* SOLUTION", "", guide.source)
    (says,) = gate.solution_text(SCRIPT, with_cell(new_markdown_cell(words, id="guide"))).wrong
    assert says.startswith("cell guide holds 100%")


def test_what_lies_beside_or_in_a_release_is_found(lesson):
    assert gate.leaking(lesson, notebooks.made([lesson]), RELEASE, HELD).wrong == ()
    (lesson.release.parent / "notes.txt").write_text("answers")
    spoiled = with_cell(new_code_cell("1", id="ran", execution_count=1, metadata={"trusted": True}))
    spoiled.metadata["authors"] = ["somebody"]
    spoiled.cells[0]["attachments"] = {"x.png": {}}
    told = HELD | {"course_lib/copied.py": KERNEL.source.encode()}
    wrong = gate.leaking(lesson, notebooks.made([lesson]), spoiled, told).wrong
    assert [part for part in ("notes.txt comes from no lesson", "metadata holds authors", "has attachments",
                              "cell ran has outputs", "cell ran has metadata trusted", "copied.py holds 100%")
            if not any(part in says for says in wrong)] == []  # fmt: skip
    assert len(wrong) == 6


@pytest.fixture(scope="module")
def everything():
    return bundle.contents(lessons.find(ROOT))


def leaks_of(lesson, held):
    """Without building it: what lies there is what is made."""
    made = {path: path.read_bytes() for path in lesson.release.parent.rglob("*") if path.is_file()}
    return gate.leaking(lesson, made, nbformat.read(lesson.release, as_version=4), held).wrong


def test_a_class_in_the_bundle_that_is_an_answer_is_found():
    """As what computes the truth of dispatch.table would be."""
    (dispatch,) = lessons.find(unit="dispatch")
    held = dict.fromkeys(["autograder/exercises/dispatch/table_truth.py", "README.md"], b"")
    assert (
        "autograder.exercises.dispatch.table_truth.Table is an answer to dispatch.table"
        in gate.ready_made(dispatch, held).wrong
    )
    assert gate.ready_made(dispatch, {"autograder/exercises/dispatch/table.py": b""}).wrong == ()


@pytest.mark.xdist_group("bundle")  # one process records the calls that stand in it
@pytest.mark.parametrize("lesson", lessons.find(ROOT), ids=lambda lesson: lesson.unit)
def test_no_lesson_leaks_an_answer(lesson, everything):
    script, release = lessons.read_script(lesson), nbformat.read(lesson.release, as_version=4)
    assert gate.solution_text(script, release).wrong == ()
    assert leaks_of(lesson, everything) == ()


@pytest.mark.xdist_group("bundle")
def test_the_file_that_an_answer_builds_on_is_given_for_that_answer_alone(everything, monkeypatch):
    (capstone,) = lessons.find(ROOT, "09_capstone")
    told = "course_lib/models/siglip/{} holds 83% of the solution of capstone_tower"
    copied = everything | {"course_lib/models/siglip/copy.py": everything["course_lib/models/siglip/naive.py"]}
    assert leaks_of(capstone, copied) == (told.format("copy.py"),)
    monkeypatch.setattr(leaks, "GIVEN", {})
    assert leaks_of(capstone, everything) == (told.format("naive.py"),), "or it need not be given"


def test_a_script_that_would_be_released_beside_the_lesson_is_found(lesson):
    (lesson.script.parent / "helper.pyc").write_text("x")
    replaced(lesson.root / "nbgrader_config.py", '"*.pyc", ', "")
    wrong = gate.leaking(lesson, notebooks.made([lesson]), RELEASE, HELD).wrong
    assert "helper.pyc is released beside the lesson" in wrong


@pytest.mark.parametrize(
    ("prose", "says"),
    [
        ("[up](../01_roofline/roofline.ipynb)", "is not in the students' bundle"),
        ("[key](../../solutions/00_start/start.ipynb)", "is not in the students' bundle"),
        ("![a picture](figure.png)", "is not in the students' bundle"),
        ('<img src="data:image/png;base64,AAAA">', "is no link that a release can have"),
        ("![a picture](attachment:figure.png)", "is no link that a release can have"),
        ("[there](#No-such-heading)", "no heading for #No-such-heading"),
        ("[where](https://)", "is no link that a release can have"),
        ("see `course_lib/no_such_file.py`", "names course_lib/no_such_file.py, which is not there"),
    ],
)
def test_a_link_or_a_picture_that_leads_nowhere_is_found(prose, says):
    (wrong,) = gate.links(with_cell(new_markdown_cell(prose, id="prose")), LESSON.release.parent, HELD).wrong
    assert says in wrong and "cell prose" in wrong


def test_links_that_lead_somewhere_pass():
    prose = "# A heading\n[here](#A-heading) [out](https://pytorch.org/docs) [me](start.ipynb) `x[i](y)` $a[b](c)$"
    looked = gate.links(with_cell(new_markdown_cell(prose)), LESSON.release.parent, HELD)
    assert looked.wrong == () and "2 links into the course" in looked.how


def test_a_drawing_cell_without_a_picture_and_an_error_in_the_solved_lesson_are_found():
    solved = nbformat.read(LESSON.solution, as_version=4)
    assert gate.pictures(solved).wrong == ()
    drawing = next(c for c in solved.cells if "plots.show(" in c.source)
    drawing.outputs = [nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])]
    said = gate.pictures(solved).wrong
    assert said == (f"cell {drawing.id} drew no picture", f"cell {drawing.id} ended with an error")


# ------------------------------------------------------------------------------------------- the grading


def mark(points, out_of=5.0, waits=False, for_whom="", by_machine=True):
    return Mark("start.axpy", points, out_of, waits, for_whom, by_machine)


def test_a_solved_lesson_that_earns_less_is_found_and_what_waits_for_a_gpu_counts_only_on_one():
    assert rehearsal.short_of_all([mark(5.0)], "interpreter") == []
    assert rehearsal.short_of_all([mark(4.5)], "interpreter") == ["start.axpy: 4.5 of 5 points"]
    assert rehearsal.short_of_all([mark(None, by_machine=False, waits=True)], "gpu") == []
    pending = mark(0.0, waits=True, for_whom="a GPU")
    assert rehearsal.short_of_all([pending], "interpreter") == []
    assert rehearsal.waiting_for_a_gpu([pending]) == ["start.axpy"]
    assert rehearsal.short_of_all([pending], "gpu") == ["start.axpy: 0 of 5 points, waits for a GPU"]
    held = mark(0.0, waits=True, for_whom="a person")
    assert rehearsal.short_of_all([held], "interpreter") == ["start.axpy: 0 of 5 points, waits for a person"]


def test_an_untouched_lesson_that_earns_or_asks_for_a_person_is_found():
    assert rehearsal.more_than_none([mark(0.0)]) == []
    assert rehearsal.more_than_none([mark(1.0)]) == ["start.axpy: 1 point"]
    assert rehearsal.more_than_none([mark(0.0, waits=True)]) == ["start.axpy waits for a person"]


def test_points_of_the_gradebook_that_are_not_the_exercises_are_found():
    assert rehearsal.wrong_points({("start.axpy", False): 5.0}, LESSON) == []
    other = {("start.axpy", False): 4.0, ("start.gone", True): 2.0}
    assert rehearsal.wrong_points(other, LESSON) == [
        "start.axpy: 4 points in the gradebook, 5 in the exercise",
        "start.gone, speed: 2 points in the gradebook, none in the exercise",
    ]


def test_grading_that_takes_too_long_is_found():
    assert gate.timing(14.0, 8.0).wrong == () and "1.0 h at least" in gate.timing(14.0, 8.0).how
    assert gate.timing(601.0, 8.0).wrong == ("more than 10 minutes for one hand-in",)


ROW = "all                            3/3     1/1     28/29     29/29        2     12.0"
FEW = "start.axpy: 20 of 29 mistakes named; 95% are asked for"


@pytest.mark.parametrize(
    ("stdout", "status", "wrong"),
    [
        (ROW, 0, []),
        (f"NOT AS EXPECTED start.axpy/mistakes/no_mask: accepted\n{ROW}", 1, ["start.axpy/mistakes/no_mask: accepted"]),
        (f"{ROW}\n{FEW}", 1, [FEW]),
        (ROW, 1, ["the bank ended with an error"]),
        ("", 2, ["no such exercise"]),
    ],
)
def test_a_mistake_that_is_not_caught_is_found(stdout, status, wrong):
    asked = []

    def run(line, **_):
        asked.append(line[-2:])
        return subprocess.CompletedProcess(line, status, stdout, "no such exercise")

    looked = gate.bank(LESSON, run)
    assert [*looked.wrong] == wrong and asked == [["bank", "start"]]
    if stdout:
        assert "28/29 mistakes caught" in looked.how and "2 that this machine cannot show" in looked.how


def test_a_command_that_fails_is_a_line_of_the_page(monkeypatch):
    def fails(lesson):
        raise rehearsal.Failed("nbgrader autograde 00_start: refused")

    monkeypatch.setattr(rehearsal, "course", fails)
    (looked,) = gate.graded(LESSON)
    assert looked.wrong == ("nbgrader autograde 00_start: refused",)


def test_the_page_says_what_failed_and_so_does_the_exit_status(monkeypatch, capsys):
    many = gate.Looked("links", "by reading", tuple(f"wrong {n}" for n in range(8)))
    lines = {"00_start": [gate.Looked("forms agree", "byte for byte")], "06_rope": [many]}
    monkeypatch.setattr(gate, "looked_at", lambda lesson: iter(lines[lesson.unit]))
    monkeypatch.setattr(gate.cohort, "open_to_others", lambda course: f"{course.name} is open\n")
    assert gate.main(argparse.Namespace(lesson=["00_start"])) == 0
    assert (
        "ok      forms agree: byte for byte" in (said := capsys.readouterr().out) and "Ready to be given out." in said
    )
    assert gate.main(argparse.Namespace(lesson=["06_rope", "00_start"])) == 1
    said = capsys.readouterr().out
    assert "FAILED  links: by reading\n        - wrong 0" in said and "- and 2 more" in said
    assert "Not ready: links." in said and said.endswith(f"{ROOT.name} is open\n")


@pytest.mark.slow
@bubblewrapped
def test_a_wrong_key_other_points_and_a_solved_release_are_found_by_grading_them(lesson):
    replaced(lesson.script, '"points": 5', '"points": 6')
    lesson.release.write_text(lessons.to_text(lessons.read_script(lesson)))
    replaced(lesson.script, "a * ", "2 * a * ")
    found = {one.name: one.wrong for one in gate.graded(lesson)}
    assert found["points"] == ("start.axpy: 6 points in the gradebook, 5 in the exercise",)
    assert found["solved earns all"] and found["untouched earns none"] and not found["time of grading"]


@pytest.mark.slow
@bubblewrapped
def test_lesson_00_is_ready():
    assert [one for one in gate.looked_at(LESSON) if one.wrong] == []
