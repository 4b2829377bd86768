"""A newer version of a lesson in the middle of a term: nothing that a student wrote is lost, or lands elsewhere."""

import argparse
import hashlib
import json

import pytest

from autograder.classroom import carrying
from autograder.classroom.lab import copy_missing
from autograder.referee.submission import extract
from course_lib.places import RELEASES

STUB = 'def double(x):\n    raise NotImplementedError("not written yet")'
ANSWER = "def double(x):\n    return x + x"


def cell(text, kind="code", marks=None, name=None):
    """As a release has it: the id of a cell that is not graded is a hash of its text."""
    made = {"cell_type": kind, "metadata": {"nbgrader": marks} if marks else {}, "source": text}
    made["id"] = name or (marks or {}).get("grade_id") or hashlib.sha256(f"{kind}\0{text}".encode()).hexdigest()[:12]
    return made | ({"outputs": [], "execution_count": None} if kind == "code" else {})


def answer(text, name="double", kind="code"):
    return cell(text, kind, {"grade_id": name, "solution": True, "grade": kind == "markdown"})


def check(text, name="double_points"):
    return cell(text, "code", {"grade_id": name, "solution": False, "grade": True})


def notebook(*cells):
    return {"cells": [dict(one) for one in cells], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


PROSE, DEMO = cell("# Lesson", "markdown"), cell("print('a demonstration')")
BASE = notebook(PROSE, DEMO, answer(STUB), check("check(1)"), answer("YOUR ANSWER HERE", "why", "markdown"))


def texts(made):
    return [(one["cell_type"], one["source"]) for one in made["cells"]]


def carry(mine, new, base=BASE):
    return carrying.carried(mine, new, base and base["cells"])


def test_answers_go_into_the_new_lesson_by_name_whatever_moved_around_them():
    mine = notebook(PROSE, DEMO, answer(ANSWER), check("check(1)"), answer("Because.", "why", "markdown"))
    new = notebook(
        cell("# Lesson, better", "markdown"),
        answer("YOUR ANSWER HERE", "why", "markdown"),
        answer(STUB),
        check("check(2)"),
        DEMO,
    )
    made, said = carry(mine, new)
    assert texts(made) == [
        ("markdown", "# Lesson, better"),
        ("markdown", "Because."),
        ("code", ANSWER),
        ("code", "check(2)"),
        ("code", DEMO["source"]),
    ]
    assert said == ["Carried over: 2 answers."]
    assert made["cells"][2]["metadata"] == new["cells"][2]["metadata"]


def test_a_cell_of_ones_own_stays_behind_its_neighbour_and_one_edited_is_kept():
    own = cell("helper = 3", name="0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d")
    first = cell("import math", name="first-own")
    edited = {**DEMO, "source": "print('mine')"}
    mine = notebook(first, PROSE, edited, own, answer(ANSWER))
    made, said = carry(mine, notebook(PROSE, DEMO, cell("new demonstration"), answer(STUB)))
    assert [text for _, text in texts(made)] == [
        "import math", "# Lesson", "print('mine')", "helper = 3", "new demonstration", ANSWER,
    ]  # fmt: skip
    assert said == ["Carried over: 1 answer, 2 cells of your own, 1 cell that you had edited."]


@pytest.mark.parametrize("ids", ["none", "others"])
@pytest.mark.parametrize("base", [BASE, None])
def test_where_an_editor_dropped_the_ids_or_gave_others_cells_are_known_by_their_text(ids, base):
    mine = notebook(PROSE, DEMO, cell("helper = 3"), answer(ANSWER))
    mine["cells"] += [dict(BASE["cells"][3]), cell("other = 4")]
    for number, one in enumerate(mine["cells"]):
        del one["id"]
        one |= {"id": f"c0ffee-{number}"} if ids == "others" else {}
    made, said = carry(mine, notebook(*BASE["cells"][:4], cell("a new demonstration")), base)
    assert [text for _, text in texts(made)] == [
        "# Lesson", DEMO["source"], "helper = 3", ANSWER, "check(1)", "other = 4", "a new demonstration",
    ]  # fmt: skip
    assert "Carried over: 1 answer, 2 cells of your own." in said
    assert len({one["id"] for one in made["cells"]}) == 7


def test_a_lesson_without_ids_grows_by_nothing_but_what_is_the_students():
    release = json.loads((RELEASES / "01_roofline/roofline.ipynb").read_text())
    for ids in (None, "x"):
        mine = json.loads(json.dumps(release))
        for number, one in enumerate(mine["cells"]):
            one.pop("id")
            one |= {"id": f"{ids}{number}"} if ids else {}
            if carrying.is_answer(one):
                one["source"] = "MINE"
        new = json.loads(json.dumps(release))
        new["cells"][1] |= {"source": "a new text", "id": "0" * 12}
        made, _ = carrying.carried(mine, new, release["cells"])
        assert len(made["cells"]) == len(release["cells"])
        assert [one["source"] == "MINE" for one in made["cells"]] == [*map(carrying.is_answer, made["cells"])]


def test_an_edited_demonstration_that_the_lesson_dropped_is_kept_as_text_that_nothing_runs():
    """As code it would be a cell of the student's own, and part of what is graded."""
    mine = notebook(PROSE, {**DEMO, "source": "import os; os.listdir()"}, answer(ANSWER))
    made, said = carry(mine, notebook(PROSE, answer(STUB)))
    assert texts(made) == [("markdown", "# Lesson"), ("raw", "import os; os.listdir()"), ("code", ANSWER)]
    assert "kept as text" in said[1]
    untouched, _ = carry(notebook(PROSE, DEMO, answer(ANSWER)), notebook(PROSE, answer(STUB)))
    assert texts(untouched) == [("markdown", "# Lesson"), ("code", ANSWER)]


def test_a_form_that_changed_stands_below_the_answer_that_was_written_for_the_old_one():
    new = notebook(PROSE, answer(STUB.replace("(x)", "(x, times=2)")))
    made, said = carry(notebook(PROSE, answer(ANSWER)), new)
    assert texts(made)[1] == ("code", ANSWER)
    assert texts(made)[2][0] == "markdown" and "times=2" in texts(made)[2][1]
    assert said[1].startswith("double: the empty cell is another one now.")
    untouched, said = carry(BASE, new)
    assert texts(untouched)[1] == ("code", new["cells"][1]["source"]), "an untouched stub takes the new form"
    assert len(untouched["cells"]) == 2 and len(said) == 1


def test_of_a_split_cell_both_halves_are_carried_and_run_in_their_order():
    first, second = "import math\ndef helper(x):\n    return 2 * x", "def double(x):\n    return helper(x)"
    mine = notebook(PROSE, DEMO, answer(first), {**answer(second), "id": "split"}, check("check(1)"))
    new = notebook(cell("# Better", "markdown"), DEMO, answer(STUB), check("check(2)"))
    made, said = carry(mine, new)
    assert [text for _, text in texts(made)] == ["# Better", DEMO["source"], first, second, "check(2)"]
    assert said[0] == "Carried over: 1 answer, 1 cell of your own." and said[1].startswith("double: yours was there 2")
    graded = [[one.source for one in extract(*both).cells] for both in ((BASE, mine), (new, made))]
    assert graded == [[first, second]] * 2
    assert texts(carry(made, new)[0]) == texts(made), "the next version finds them where they are"


def test_an_empty_copy_below_an_answer_is_no_answer():
    copy = {**answer(STUB), "id": "copy"}
    new = notebook(PROSE, DEMO, answer(STUB.replace("yet", "so far")), check("check(2)"))
    for empty in (copy, {**copy, "source": STUB + "\n"}, {**copy, "source": ""}, {**new["cells"][2], "id": "copy"}):
        made, said = carry(notebook(PROSE, DEMO, answer(ANSWER), empty), new)
        assert texts(made)[2] == ("code", ANSWER) and said[0] == "Carried over: 1 answer."
    made, said = carry(notebook(PROSE, answer(STUB), copy), new)
    assert texts(made)[2] == ("code", new["cells"][2]["source"]) and said == [
        "Carried over: nothing, there was nothing."
    ]


def test_an_answer_to_an_exercise_that_is_gone_is_kept_as_text():
    made, said = carry(notebook(PROSE, answer(ANSWER)), notebook(PROSE))
    assert texts(made)[1] == ("raw", ANSWER) and said[1].startswith("double: the new lesson has no such cell.")


def test_outputs_stay_where_the_text_is_the_same_and_a_changed_check_has_none():
    out = [{"output_type": "stream", "name": "stdout", "text": "4"}]
    mine = notebook(
        PROSE, {**DEMO, "outputs": out}, {**answer(ANSWER), "outputs": out}, {**check("check(1)"), "outputs": out}
    )
    made, _ = carry(mine, notebook(PROSE, DEMO, answer(STUB), check("check(2)")))
    assert [one.get("outputs") for one in made["cells"]] == [None, out, out, []]


def test_without_the_old_version_edits_are_known_by_the_ids_and_the_doubt_is_told():
    edited = {**DEMO, "source": "print('mine')"}
    gone = cell("# An old paragraph", "markdown")
    made, said = carry(notebook(PROSE, gone, edited, answer(ANSWER)), notebook(PROSE, answer(STUB)), None)
    assert texts(made) == [("markdown", "# Lesson"), ("raw", "print('mine')"), ("code", ANSWER)]
    assert said[1].startswith("Nobody knows from which version")


def test_every_id_is_there_once():
    mine = notebook(PROSE, cell("a", name="note"), cell("b", name="note"), answer(ANSWER))
    made, _ = carry(mine, notebook(PROSE, answer(STUB + "\n# new")))
    ids = [one["id"] for one in made["cells"]]
    assert len(ids) == len(set(ids)) == 5


# ------------------------------------------------------------------------------------------- folders


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A course of two lessons, copied to work/ as `lab` does."""
    monkeypatch.setattr(carrying, "HOME", tmp_path)
    monkeypatch.setattr(carrying, "RELEASES", tmp_path / "notebooks")
    for unit in ("00_start", "01_next"):
        write(tmp_path / "notebooks" / unit / f"{unit[3:]}.ipynb", BASE)
    copy_missing(tmp_path / "notebooks", tmp_path / "work")
    return tmp_path


def write(path, made):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made))


def test_what_nobody_touched_is_renewed_and_what_somebody_wrote_waits_for_carry(home, capsys):
    mine = home / "work/00_start/start.ipynb"
    write(mine, notebook(PROSE, DEMO, answer(ANSWER)))
    hours = mine.read_bytes()
    assert carrying.renew(home / "notebooks", home / "work") == []
    for unit in ("00_start/start", "01_next/next"):
        write(home / f"notebooks/{unit}.ipynb", notebook(PROSE, answer(STUB), check("check(3)")))
    said = carrying.renew(home / "notebooks", home / "work")
    assert [line.split(".")[0] for line in said] == ["work/00_start/start", "work/01_next/next"]
    assert "make carry LESSON=00_start" in said[0] and "was renewed" in said[1]
    assert mine.read_bytes() == hours
    assert (home / "work/01_next/next.ipynb").read_bytes() == (home / "notebooks/01_next/next.ipynb").read_bytes()
    for says in ("is the new version now", "there is nothing to do"):
        assert carrying.main(argparse.Namespace(lesson="00_start")) == 0
        assert says in capsys.readouterr().out
    assert (home / "work/before/00_start/start-1.ipynb").read_bytes() == hours
    assert [text for _, text in texts(json.loads(mine.read_text()))] == ["# Lesson", ANSWER, "check(3)"]
    assert carrying.renew(home / "notebooks", home / "work") == []


def test_a_copy_from_before_is_told_by_cells_that_the_lesson_no_longer_has(home):
    (home / "work/.given/00_start/start.ipynb").unlink()
    (home / "work/.given/01_next/next.ipynb").unlink()
    write(home / "work/01_next/next.ipynb", notebook(PROSE, {**DEMO, "source": "my own try"}))
    write(home / "work/00_start/start.ipynb", notebook(PROSE, cell("an old paragraph", "markdown")))
    said = carrying.renew(home / "notebooks", home / "work")
    assert len(said) == 1 and said[0].startswith("work/00_start/start.ipynb has a new version.")


@pytest.mark.parametrize("text", ["", "[]", '{"cells": [{}]}', "{"])
def test_a_notebook_that_cannot_be_read_stays_as_it_is(home, capsys, text):
    mine = home / "work/00_start/start.ipynb"
    mine.write_text(text)
    write(home / "notebooks/00_start/start.ipynb", notebook(PROSE))
    assert carrying.renew(home / "notebooks", home / "work")
    assert carrying.main(argparse.Namespace(lesson="00_start")) == 1
    assert "is no notebook that can be read" in capsys.readouterr().out
    assert mine.read_text() == text


def test_an_unknown_lesson_is_answered_with_those_there_are(home, capsys):
    assert carrying.main(argparse.Namespace(lesson="09_none")) == 2
    assert "there are 00_start, 01_next" in capsys.readouterr().out
