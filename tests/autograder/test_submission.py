"""From a notebook to the student's code: whatever happened to the other cells."""

import contextlib
import copy
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from autograder.referee import submission
from autograder.referee.submission import Submission, as_python, extract, repair

COURSE = Path(__file__).resolve().parents[2]


def code(source, grade_id=None, cell_id=None, **marks):
    cell = {"cell_type": "code", "source": source, "metadata": {}, "id": cell_id or grade_id or source[:8]}
    if grade_id:
        cell["metadata"]["nbgrader"] = {"grade_id": grade_id, **marks}
    return cell


SETUP = code("import torch", cell_id="setup")
SETUP["metadata"]["tags"] = ["setup"]
RELEASE = {
    "cells": [
        SETUP,
        code("shown = 1", cell_id="demo"),
        code("def f(): raise NotImplementedError", "f", solution=True),
        code("check('f', f)", "f_check", grade=True),
        code("def g(): raise NotImplementedError", "g", solution=True),
    ]
}


def submitted(*changes):
    notebook = copy.deepcopy(RELEASE)
    notebook["cells"][2]["source"] = "def f(): return 1"
    notebook["cells"][4]["source"] = "def g(): return 2"
    for change in changes:
        change(notebook["cells"])
    return notebook


def sources(notebook):
    return [cell.source.strip() for cell in extract(RELEASE, notebook).cells]


PLAIN = ["import torch", "def f(): return 1", "def g(): return 2"]


STUB = {
    "cells": [
        code("def f():\n    raise NotImplementedError('not written yet')", "f", solution=True),
        *RELEASE["cells"][3:],
    ]
}
BEGUN = {
    "nothing": (lambda cells: None, True),
    "the other exercise": (lambda cells: cells[2].update(source="def g(): return helper()"), True),
    "a try of something else": (lambda cells: cells.append(code("print('function')")), True),
    "its name in a string": (lambda cells: cells[2].update(source="def g(op): return op == 'f'  # or f"), True),
    "its name looked up": (lambda cells: cells[2].update(source="globals()['f'] = len"), False),
    "its name looked up by another cell": (
        lambda cells: cells.extend([code("def make(name): globals()[name] = len"), code("make('f')")]),
        False,
    ),
    "its name in what is no Python": (lambda cells: cells[2].update(source="def g(: f"), False),
    "another cell that is no Python": (
        lambda cells: cells.extend([code("def g(: eval"), code("class h:\n    f = 3", "h")]),
        True,
    ),
    "the stub": (lambda cells: cells[0].update(source=cells[0]["source"] + "  # soon"), False),
    "a cell of its own": (lambda cells: cells.append(code("def f(): return 1")), False),
    "a name": (lambda cells: cells.append(code("f = lambda: 1")), False),
    "a parameter, a local name, an attribute": (
        lambda cells: cells[2].update(source="class g:\n    def __init__(self, f):\n        self.f = [f for f in f]"),
        True,
    ),
    "the other exercise, which calls it": (lambda cells: cells[2].update(source="def g(): return f() + 1"), True),
    "a call that may give it something else": (lambda cells: cells.append(code("replace(f)")), False),
    "an attribute of it": (lambda cells: cells.append(code("f.__code__ = h.__code__")), False),
    "the name of a loop": (lambda cells: cells.append(code("for f in (len,): pass")), False),
    "an import": (lambda cells: cells.append(code("from math import floor as f")), False),
    "an attribute of the notebook": (lambda cells: cells.append(code("import __main__ as m\nm.f = len")), False),
    "an attribute of the notebook's module": (
        lambda cells: cells.append(code("import sys\nsys.modules['__main__'].f = len")),
        False,
    ),
    "an await at the top": (lambda cells: cells.append(code("f = await made()")), False),
    "the other exercise, with it": (lambda cells: cells[2].update(source="def g(): global f; f = len"), False),
}


@pytest.mark.parametrize("kind", BEGUN)
def test_a_stub_is_untouched_while_nothing_that_was_written_can_change_what_it_defines(kind):
    change, untouched = BEGUN[kind]
    notebook = copy.deepcopy(STUB)
    change(notebook["cells"])
    found = extract(STUB, notebook)
    assert found.untouched == ({"f"} if untouched else set())
    assert Submission.of_data(json.loads(json.dumps(found.as_data()))) == found


def test_a_cell_that_raised_is_told_with_its_line_where_there_is_one():
    assert submission.in_words(("f", "SyntaxError: invalid syntax (<f>, line 1)", "")).endswith("line 1).")
    assert submission.in_words(("f", "KeyError: 1", "line 2: x[1]")) == "The cell f raised KeyError: 1 (line 2: x[1])."


def test_setup_and_solutions_are_taken_and_nothing_else():
    assert sources(submitted()) == PLAIN


@pytest.mark.parametrize(
    "change",
    [
        lambda cells: cells[0].update(source="import evil"),
        lambda cells: cells.pop(0),
        lambda cells: cells[1].update(source="shown = exit()"),
        lambda cells: cells[3].update(source="5.0"),
        lambda cells: cells.pop(3),
        lambda cells: cells[3].update(cell_type="raw"),
        lambda cells: cells.append(copy.deepcopy(cells[3])),
        lambda cells: cells[2].update(cell_type="markdown"),
        lambda cells: cells[2].update(metadata={}),
        lambda cells: cells.insert(1, copy.deepcopy(RELEASE["cells"][2])),
        lambda cells: cells[3].update(source="check('g', g)"),
        lambda cells: cells[3]["metadata"].update(nbgrader="broken"),
        lambda cells: cells[1]["metadata"].update(nbgrader={"grade_id": ["no", "name"]}, tags=5),
    ],
    ids=[
        "setup edited",
        "setup deleted",
        "demonstration edited",
        "check edited",
        "check deleted",
        "check turned raw",
        "check doubled",
        "solution turned markdown",
        "solution lost its name",
        "stub doubled before the answer",
        "check pointed at another exercise",
        "check's metadata broken",
        "a grade_id that is no name",
    ],
)
def test_what_happens_to_other_cells_changes_nothing(change):
    assert sources(submitted(change)) == PLAIN


OTHER_MARKS = [{"points": 100}, {"grade_id": "g_check"}, {"solution": True}, {"grade": False}]


@pytest.mark.parametrize("marks", OTHER_MARKS, ids=lambda marks: next(iter(marks)))
def test_a_check_cell_is_graded_as_it_was_released(marks):
    def change(cells):
        cells[3]["metadata"]["nbgrader"].update(marks)
        cells[3]["source"] = "5.0"

    repaired, _ = repair(RELEASE, submitted(change))
    graded = [cell for cell in repaired["cells"] if "grade" in cell["metadata"].get("nbgrader", {})]
    assert graded == [RELEASE["cells"][3]]


def test_an_answer_whose_name_was_pointed_at_another_exercise_is_known_by_its_id():
    result = extract(RELEASE, submitted(lambda cells: cells[2]["metadata"]["nbgrader"].update(grade_id="g")))
    assert [cell.source.strip() for cell in result.cells] == PLAIN
    assert any("f had lost its name" in note for note in result.notes)


STRANGE = {
    "signs": "x = " + "-" * 100_000 + "1",
    "attributes": "x" + ".y" * 70_000,
    "sums": "x = " + "+".join("1" * 5000),
    "nul": "x = '\0'",
    "arguments": "def f(a, a): pass",
}


@pytest.mark.parametrize("source", STRANGE.values(), ids=STRANGE)
def test_a_cell_that_cannot_be_taken_apart_costs_nothing_else(source):
    assert sources(submitted(lambda cells: cells.append(code(source)))) == [*PLAIN, source]


def test_half_of_a_letter_is_replaced_because_no_file_could_hold_it():
    result = extract(RELEASE, submitted(lambda cells: cells[2].update(source="f = '\ud800'")))
    assert result.cells[1].source.strip() == "f = '?'"


def test_what_is_too_long_to_be_read_is_said_and_the_rest_is_read(monkeypatch):
    monkeypatch.setattr(submission, "CODE", 500)
    result = extract(RELEASE, submitted(lambda cells: cells.insert(2, code("x = 1\n" * 100, cell_id="new"))))
    assert [cell.source.strip() for cell in result.cells] == PLAIN
    assert any("Cell 3 was not read" in note for note in result.notes)


def test_of_a_doubled_solution_the_last_one_wins():
    again = code("def f(): return 9", "f", solution=True)
    assert "def f(): return 9" in sources(submitted(lambda cells: cells.append(again)))


def test_own_cells_run_where_the_student_put_them():
    helper = code("def helper(): pass", cell_id="new")
    assert sources(submitted(lambda cells: cells.insert(2, helper))) == [PLAIN[0], "def helper(): pass", *PLAIN[1:]]
    assert sources(submitted(lambda cells: cells.insert(0, helper)))[0] == "def helper(): pass"


def test_a_deleted_solution_is_replaced_by_the_stub_and_said():
    result = extract(RELEASE, submitted(lambda cells: cells.pop(2)))
    assert any("f is missing" in note for note in result.notes)
    assert "NotImplementedError" in result.cells[1].source


def test_a_cell_of_their_own_in_place_of_a_deleted_one_is_not_undone_by_the_empty_one():
    def change(cells):
        cells[2] = code("def f(): return 7", cell_id="new")

    result = extract(RELEASE, submitted(change))
    assert [cell.source.strip() for cell in result.cells if "def f" in cell.source][-1] == "def f(): return 7"
    namespace = {}
    for cell in result.cells:
        with contextlib.suppress(NotImplementedError):
            exec(cell.source, namespace)
    assert namespace["f"]() == 7


@pytest.mark.parametrize("kind", ["x = !ls\n", "%timeit f()\n", "    !ls\n", "f?\n", ", f a b\n"])
def test_hundreds_of_magics_are_read_in_a_second(kind):
    source = ("def f():\n    pass\n" + "if True:\n" * kind.startswith(" ") + kind) * 600
    start = time.process_time()
    made = as_python(source)
    assert time.process_time() - start < 2.0
    if not kind.startswith(","):  # nobody's magic, and no Python
        compile(made, "cell", "exec")
    assert made.count("\n") == source.count("\n")


ONE_LETTER = {"spaces": " ", "letters": "a", "questions": "?", "equals": "a = ", "tabs": "\t "}


@pytest.mark.parametrize("kind", ONE_LETTER)
def test_a_line_of_one_letter_is_read_in_a_second(kind):
    start = time.process_time()
    as_python(f"x = 1\n{ONE_LETTER[kind] * 100_000}!x\n")
    assert time.process_time() - start < 2.0


def test_what_is_shown_as_text_is_cut_where_showing_it_would_take_long(monkeypatch):
    monkeypatch.setattr(submission, "TEXT", 50)
    monkeypatch.setattr(submission, "TEXTS", 70)
    own = [{"cell_type": "markdown", "id": f"own{n}", "metadata": {}, "source": "[a]: <" * 40} for n in range(3)]
    repaired, notes = repair(RELEASE, submitted(lambda cells: cells.extend(own)))
    shown = [cell["source"] for cell in repaired["cells"] if cell["source"].startswith("[a]")]
    assert [len(text) for text in shown] <= [50, 20] and sum(map(len, shown)) <= 70
    assert any("characters were read" in note for note in notes)


def test_a_split_solution_counts_whole_and_a_copy_of_the_empty_one_does_not_count():
    halves = [code(text, "f", solution=True) for text in ("def helper(): return 7", "def f(): return helper()")]

    def split(cells):
        cells[2:3] = halves

    namespace = {}
    for cell in extract(RELEASE, submitted(split)).cells:
        with contextlib.suppress(NotImplementedError):
            exec(cell.source, namespace)
    assert namespace["f"]() == 7
    empty = next(cell for cell in RELEASE["cells"] if "NotImplementedError" in "".join(cell["source"]))
    result = extract(RELEASE, submitted(lambda cells: cells.append({**empty, "id": "copy"})))
    assert [cell.source.strip() for cell in result.cells] == PLAIN


def test_a_picture_in_a_text_is_told_and_breaks_no_page():
    own = {"cell_type": "markdown", "id": "own", "metadata": {}, "source": "![x](attachment:x.png)"}
    repaired, notes = repair(RELEASE, submitted(lambda cells: cells.append(own)))
    assert not any("attachment:" in cell["source"] for cell in repaired["cells"])
    assert any("A picture in cell" in note for note in notes)


def test_a_changed_setup_is_told():
    setup = next(n for n, cell in enumerate(RELEASE["cells"]) if "setup" in cell["metadata"].get("tags", []))
    notes = extract(RELEASE, submitted(lambda cells: cells[setup].update(source="import math"))).notes
    assert any("setup cell was changed" in note for note in notes)
    assert not any("setup" in note for note in extract(RELEASE, submitted(lambda cells: None)).notes)


@pytest.mark.parametrize(
    "text", ['a[""]=%b\n' * 2000, "'" + "\\'" * 15_000, "x\t=\t!ls\n" * 500, "a = 5 % 3\r!ls\r" * 500]
)
def test_what_is_no_python_is_made_some_in_a_second(text):
    start = time.process_time()
    as_python(text)
    assert time.process_time() - start < 2.0


def test_a_cell_magic_before_a_windows_line_end_leaves_its_body():
    assert "def f" in as_python("%%time\r\ndef f(): pass")


def test_thousands_of_blank_lines_are_not_kept():
    result = extract(RELEASE, submitted(lambda cells: cells[2].update(source="f = 1" + " \n" * 40_000 + "g = 2")))
    assert len(result.cells[1].source) < 300 and "g = 2" in result.cells[1].source


@pytest.mark.parametrize("ids", [True, False])
def test_the_text_of_the_lesson_itself_takes_nothing_from_what_a_student_may_write(ids):
    lesson = json.loads((COURSE / "notebooks/01_roofline/roofline.ipynb").read_text())
    written = copy.deepcopy(lesson)
    notes = [{"cell_type": "markdown", "id": f"n{n}", "metadata": {}, "source": f"{n} " * 4000} for n in range(6)]
    written["cells"][3:3] = notes
    questions = [c for c in written["cells"] if c["cell_type"] == "markdown" and c["metadata"].get("nbgrader")]
    for cell in questions:
        cell["source"] = "because " * 500
    for cell in [] if ids else written["cells"]:
        del cell["id"]
    repaired, said = repair(lesson, written)
    assert said == [] and len(questions) > 1
    assert sum("".join(cell["source"]) == "because " * 500 for cell in repaired["cells"]) == len(questions)


@pytest.mark.parametrize("ids", [True, False])
def test_an_answer_that_was_written_into_the_question_is_not_lost(ids):
    lesson = json.loads((COURSE / "notebooks/01_roofline/roofline.ipynb").read_text())
    asks = next(n for n, c in enumerate(lesson["cells"]) if "YOUR ANSWER" in "".join(c["source"])) - 1
    question = "".join(lesson["cells"][asks]["source"])
    for written in (f"{question}\n\nBecause of memory.", f"Because of memory.\n\n{question}", "Because of memory."):
        mine = copy.deepcopy(lesson)
        mine["cells"][asks]["source"] = written
        for cell in [] if ids else mine["cells"]:
            del cell["id"]
        repaired, said = repair(lesson, mine)
        (own,) = (n for n, c in enumerate(repaired["cells"]) if c["metadata"].get(submission.OWN))
        assert own == asks + 1 and repaired["cells"][own]["cell_type"] == "markdown"
        assert "".join(repaired["cells"][asks]["source"]) == question
        answer = "".join(repaired["cells"][own]["source"])
        assert answer.endswith("Because of memory.") or not ids
        assert said == ["Text was written into a cell of the lesson; it stands in a cell of its own below that."] * ids
    spaced = copy.deepcopy(lesson)
    spaced["cells"][asks]["source"] = " " + question.replace("\n", "  \n\n")
    assert repair(lesson, spaced) == repair(lesson, lesson)
    older = copy.deepcopy(lesson)  # an edition of the lesson in which every text had another last line
    for cell in older["cells"]:
        if cell["cell_type"] == "markdown" and "\n" in "".join(cell["source"]) and not cell["metadata"].get("nbgrader"):
            cell["source"] = "".join(cell["source"]).rsplit("\n", 1)[0] + "\nas it was told before"
    assert repair(lesson, older) == repair(lesson, lesson) or not ids


@pytest.mark.parametrize("ids", [True, False])
def test_a_demonstration_cell_copied_into_an_own_cell_runs(ids):
    """Where an editor dropped the ids, the lesson's own demonstration cells look like copies."""

    def change(cells):
        cells.insert(2, code("shown = 1", cell_id="new"))
        for cell in [] if ids else cells:
            del cell["id"]

    assert sources(submitted(change)) == (["import torch", "shown = 1", *PLAIN[1:]] if ids else PLAIN)


def test_a_copy_of_a_check_or_of_an_empty_cell_does_not_run():
    again = [code(RELEASE["cells"][n]["source"], cell_id=f"copy{n}") for n in (0, 2, 3)]
    assert sources(submitted(lambda cells: cells.extend(again))) == PLAIN


def test_a_solution_in_a_demonstration_cell_is_told():
    def change(cells):
        cells[1]["source"] = "def f(): return 1"
        cells[2]["source"] = RELEASE["cells"][2]["source"]

    assert any("`f` is defined in a demonstration cell" in note for note in extract(RELEASE, submitted(change)).notes)
    both = submitted(lambda cells: cells[1].update(source="def f(): return 1"))
    assert not extract(RELEASE, both).notes, "its solution cell is not empty"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def f(): return shown", True),
        ("def f(x=shown): return x", True),
        ("import helper as shown\ndef f(): return shown", False),
        ("def f():\n    shown = 2\n    return shown", False),
        ("def f(shown): return lambda: shown", False),
        ("def f(: no Python, shown", False),
    ],
)
def test_a_name_that_only_a_demonstration_cell_binds_is_told(source, told):
    notes = extract(RELEASE, submitted(lambda cells: cells[2].update(source=source))).notes
    assert any("`shown`, used in the cell f, is defined only in a demonstration cell" in note for note in notes) == told
    own = [code("shown = 3", cell_id="mine")]
    assert not extract(RELEASE, submitted(lambda c: (c[2].update(source=source), c.extend(own)))).notes
    assert not extract(RELEASE, submitted(lambda c: c.append(code("print(shown)", cell_id="looks")))).notes


def test_marks_of_a_merge_in_a_cell_are_told():
    text = "<<<<<<< HEAD\ndef f(): return 1\n=======\ndef f(): return 2\n>>>>>>> mine\n"
    notes = extract(RELEASE, submitted(lambda cells: cells[2].update(source=text))).notes
    assert ["a merge that was not finished" in note for note in notes] == [True]
    fine = 'words = """\n=======\n"""'
    assert not extract(RELEASE, submitted(lambda cells: cells[2].update(source=fine))).notes


def test_the_cells_that_decide_an_exercise_end_at_its_check_or_where_its_entry_is_last_defined():
    found = extract(RELEASE, submitted(lambda cells: cells.append(code("BLOCK = 2", cell_id="new"))))
    assert [cell.name for cell in found.cells] == ["setup 1", "f", "g", "your cell 1"]
    assert found.settled("f") == "f", "above check('f', f)"
    assert found.settled("g") == "your cell 1", "no check cell names it"
    again = extract(RELEASE, submitted(lambda cells: cells.append(code("def f(): return 3", cell_id="new"))))
    assert again.settled("f") == "your cell 1"


def test_a_submission_is_the_same_after_its_way_through_json():
    found = extract(RELEASE, submitted(lambda cells: cells[1].update(source="def helper(): pass")))
    assert Submission.of_data(json.loads(json.dumps(found.as_data()))) == found


def test_controls_are_not_shown_and_letters_of_every_script_are():
    assert submission.visible("a\x1b[2J\x00\u202eb\r\nc\td") == "a\ufffd[2J\ufffd\ufffdb\nc\td"
    for text in ("\u05e9\u05dc\u05d5\u05dd", "gr\xf6\xdfer", "\U0001f469\u200d\U0001f52c", "a\n\tb"):
        assert submission.visible(text) == text


def test_what_is_run_is_what_was_written_and_what_is_shown_is_visible():
    text = "def f(): return '\u202e\x0c'"
    shown, found = submission.taken(RELEASE, submitted(lambda cells: cells[2].update(source=text)))
    assert found.cells[1].source == text
    assert shown["cells"][2]["source"] == "def f(): return '\ufffd\ufffd'"


def test_a_name_from_a_demonstration_cell_is_reported_as_that():
    result = extract(RELEASE, submitted(lambda cells: cells[1].update(source="def helper(): pass")))
    assert "demonstration cell" in result.missing("helper")
    assert "not defined" in result.missing("other")


@pytest.mark.parametrize("line", ["%timeit f()", "!ls", "files = !ls", "f?", "%matplotlib inline"])
def test_a_magic_is_python_that_asks_the_notebook(line):
    compile(as_python(f"x = 1\n{line}\ny = 2"), "cell", "exec")
    assert "get_ipython()" in as_python(line)


def test_a_percent_sign_that_begins_a_line_of_an_expression_stays():
    namespace = {}
    exec(as_python("x = (7\n% 4)"), namespace)
    assert namespace["x"] == 3


@pytest.mark.parametrize(("magic", "kept"), [("%%time", True), ("%%timeit -n 3", True), ("%%bash", False)])
def test_a_cell_magic_that_watches_leaves_its_body(magic, kept):
    assert ("def f" in as_python(f"{magic}\ndef f(): pass")) == kept


def test_what_a_magic_watches_is_a_cell_like_others():
    namespace = {"get_ipython": lambda: SimpleNamespace(system=print, run_line_magic=print, run_cell_magic=print)}
    cell = "%%time\n%%capture said\n%matplotlib inline\nx = 7\n%time y = x + 1\nif x:\n    %time z = y"
    exec(as_python(cell), namespace)
    assert (namespace["x"], namespace["y"], namespace["z"]) == (7, 8, 8)
    assert as_python("%%time\n%%bash\nrm -r x") == "pass"
    assert as_python("%%time\n" * 16_000 + "x = 7") == "pass"
    assert "%time x" in as_python("text = '''\n%time x\n'''")
