"""The page about a class: its numbers, what it shows of whom, and that nothing of a student acts in it."""

import argparse
import csv
import itertools
import json
import re
import shutil
import time
from dataclasses import replace

import pytest
from matplotlib.colors import to_rgba
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.spines import Spine
from matplotlib.text import Text

from autograder.bank import entries, find
from autograder.classroom import export, marks, taken, verdicts
from autograder.classroom.handed_in import CODE, take
from autograder.classroom.overview import answers, command, items, likeness, page
from autograder.classroom.overview.answers import Answer
from course_lib import plots
from course_lib.places import RELEASES

LESSON, NAME = "01_roofline", "roofline"
SOFTMAX = find("roofline.softmax/right/looped").source


def answer(student: str, points: float, name: str = "roofline.softmax", **more) -> Answer:
    return Answer(student, name, more.pop("kind", "code"), points, 8.0, **more)


def told(found: list[Answer]) -> str:
    return page.page(LESSON, found, [], {one.student: f"name of {one.student}" for one in found})


# ------------------------------------------------------------------------------------------- numbers


def test_an_exercise_s_numbers_leave_out_what_waits():
    found = [answer("ada", 8), answer("bob", 4), answer("cy", 0, tried=False), answer("dan", 0, waits="a GPU")]
    (row,) = items.analysed(found)
    assert (row.settled, row.waiting, row.tried) == (3, 1, 3)
    assert (row.mean, row.full) == (0.5, pytest.approx(1 / 3))
    assert row.discrimination is None, "too few"
    assert items.totals(found) == {"ada": 8, "bob": 4, "cy": 0, "dan": 0}


def test_an_exercise_that_only_waits_is_not_called_the_hardest():
    """Those who left it empty have their 0, and those who wrote something wait for a person."""
    found = [answer(f"s{n}", 4, "a") for n in range(4)]
    found += [answer("s0", 0, "words", waits="a person"), answer("s1", 0, "words", tried=False)]
    assert [row.mean for row in items.analysed(found)] == [0.5, None]
    assert "the least is a." in told(found)
    settled = [replace(one, waits="", tried=one.item == "a") for one in found]
    assert items.analysed(settled)[1].mean == 0.0, "nobody tried it, and that says something"


def test_points_for_speed_that_only_wait_or_were_lost_before_timing_are_not_called_the_hardest():
    lost, waits = (answer("s0", 0, kind="speed"), answer("s1", 0, kind="speed", waits="a GPU"))
    assert [row.mean for row in items.analysed([lost, waits])] == [None]
    for timed in (answer("s2", 4, kind="speed"), answer("s2", 0, kind="speed", share=0.1)):
        assert items.analysed([lost, waits, timed])[0].mean == timed.points / 16


def test_what_grading_took_is_in_the_order_of_the_lesson():
    found = [answer("ada", 0, "a"), answer("ada", 8, "b", seconds=1.0), answer("bob", 8, "a", seconds=2.0)]
    assert list(items.seconds(found).items()) == [("a", [2.0]), ("b", [1.0])]


def test_discrimination_is_against_the_other_exercises_and_told_only_where_it_means_something():
    strong = [answer(f"s{n}", n, "a") for n in range(6)] + [answer(f"s{n}", n / 2, "b") for n in range(6)]
    weak = [answer(f"s{n}", 8 - n, "c") for n in range(6)]
    a, _, c = items.analysed(strong + weak)
    assert c.discrimination == pytest.approx(-1) and a.discrimination == pytest.approx(-1)
    assert items.analysed(strong)[0].discrimination == pytest.approx(1)
    assert items.analysed([answer(f"s{n}", 8, "a") for n in range(6)])[0].discrimination is None


def test_mistakes_are_counted_and_the_shortest_answer_is_the_example():
    found = [answer(f"s{n}", 0, mistake="no_mask", source="x = 1" * (3 - n)) for n in range(3)]
    assert items.mistakes([*found, answer("t", 0, mistake="other")]) == [
        ("roofline.softmax", "no_mask", 3, "x = 1"),
        ("roofline.softmax", "other", 1, ""),
    ]


def test_an_example_names_nobody_in_its_comments_and_docstrings():
    source = '"""By Ada."""\n# Ada wrote this\ndef f(x):\n    """Ada\'s."""\n    return x  # Ada\n'
    assert likeness.without_words(source) == "def f(x):\n    return x"
    assert likeness.without_words("def f(:") == ""


# ------------------------------------------------------------------------------------------- answers that are alike


def test_other_names_comments_and_layout_make_no_other_answer():
    renamed = re.sub(r"\brow\b", "line", SOFTMAX).replace("\ndef ", "\n# mine\n\n\ndef ")
    assert renamed != SOFTMAX
    assert likeness.likeness(likeness.parts(SOFTMAX), likeness.parts(renamed)) == 1.0


METER = """
class Meter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.flops = self.bytes = 0
        self.seen = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = self.run(func, args, kwargs=kwargs)
        self.seen.setdefault("calls", []).append(func)
        if made is None:
            raise ValueError("nothing came back from " + str(func))
        return made

    def run(self, func, args, kwargs):
        return func(*args, **(kwargs or {}))
"""


def test_who_renames_attributes_methods_parameters_and_strings_or_moves_a_method_makes_no_other_answer():
    renamed = METER
    for name, other in [("seen", "log"), ("run", "call"), ("kwargs", "more"), ("calls", "all")]:
        renamed = re.sub(rf"\b{name}\b", other, renamed)
    renamed = renamed.replace("nothing came back from ", "no result of ").replace("args=()", "args: tuple = ()")
    assert likeness.likeness(likeness.parts(METER), likeness.parts(renamed)) == 1.0
    above, method, below = renamed.partition("    def call")
    moved = above.replace("    def __init__", f"{method}{below}\n    def __init__", 1)
    assert likeness.likeness(likeness.parts(METER), likeness.parts(moved)) > likeness.ALIKE


def test_attributes_of_others_numbers_and_which_names_are_the_same_tell_answers_apart():
    for before, after in [(".append", ".extend"), ("= 0", "= 1"), ("made is None", "func is None")]:
        other = METER.replace(before, after)
        assert other != METER and likeness.likeness(likeness.parts(METER), likeness.parts(other)) < 1.0


def test_right_answers_that_are_written_in_different_ways_are_not_alike():
    """Of all pairs in the bank, one: the second differs from the first in a few words."""
    near = []
    for name in sorted({entry.exercise for entry in entries()}):
        counts = [(one.name, likeness.parts(one.source)) for one in entries([name], ["right"])]
        pairs = itertools.combinations([(name, told) for name, told in counts if told], 2)
        near += [(one, two) for (one, a), (two, b) in pairs if likeness.likeness(a, b) >= likeness.ALIKE]
    assert near == [("after_an_all_reduce", "whole_parameters")]


def test_a_stub_is_no_answer_that_is_like_others(folder):
    """Neither as it was released, nor with a comment, nor where something else was made of its name."""
    release = json.loads((RELEASES / LESSON / f"{NAME}.ipynb").read_text())
    stub = next("".join(c["source"]) for c in release["cells"] if "def softmax" in "".join(c["source"]))
    path = taken.Item("ada", LESSON, NAME).path
    notebook = json.loads(path.read_text())
    for more in ("", "# soon\n", "\n\n"):
        notebook["metadata"][CODE]["cells"][-1] = ["roofline_softmax", stub + more]
        path.write_text(json.dumps(notebook))
        assert [one.source for one in answers.gathered(LESSON)[0]] == ["", ""]


@pytest.mark.parametrize("answer", ["0x" + "f" * 4000, "f(" + "a," * 2000 + ")" + ".q" * 900])
def test_an_answer_that_no_report_can_write_ends_no_report(answer):
    """Python writes no number of more than 4,300 digits, and of deep trees the parts are as long as their depth."""
    began = time.monotonic()
    assert likeness.likeness(likeness.parts(f"{SOFTMAX}\nx = {answer}"), likeness.parts(SOFTMAX)) >= 0
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("other", ["one_block", "several_rows"])
def test_another_way_to_write_it_is_not_alike(other):
    source = find(f"roofline.softmax/right/{other}").source
    assert likeness.likeness(likeness.parts(SOFTMAX), likeness.parts(source)) < likeness.ALIKE


def test_of_each_group_the_two_that_are_the_most_alike_come_first_and_it_says_how_alike_they_are():
    """Groups grow together, whichever pair was found first."""
    texts = [SOFTMAX + "".join(f"a{m} = {m}.0\nb{m} = a{m} + {m}\n" for m in range(n)) for n in range(12)]
    found = [answer(f"s{n:02}", 8, source=text) for n, text in enumerate(texts)]
    found += [answer(f"t{n:02}", 8, "roofline.work", source=text) for n, text in enumerate(texts[::3])]
    groups, _ = likeness.groups(found)
    assert sum(len(group.answers) for group in groups) > 12
    for group in groups:
        pairs = itertools.combinations([likeness.parts(one.source) for one in group.answers], 2)
        of_pairs = [likeness.likeness(*pair) for pair in pairs]
        assert of_pairs[0] == max(of_pairs) == group.likeness


def test_groups_are_told_once_and_neither_short_answers_nor_the_usual_way():
    others = [find(f"roofline.softmax/right/{name}").source for name in ("one_block", "several_rows")]
    found = [answer(name, 8, source=f"{SOFTMAX}# {name}\n") for name in ("ada", "bob", "cy")]
    found += [answer(f"s{n}", 8, source=others[0]) for n in range(20)] + [answer("zoe", 8, source=others[1])]
    found += [answer(name, 8, "roofline.work", source="def work(x):\n    return x") for name in ("ada", "bob")]
    few = likeness.groups([one for one in found if one.student in ("ada", "bob", "cy", "s0", "s1", "zoe")])
    assert [len(group.answers) for group in few[0]] == [3, 2] and few[1] == {}, "of six, three may have copied"
    # three of 24 are more than a tenth, so a class of 60 is needed
    found += [answer(f"t{n}", 8, source=others[0]) for n in range(36)]
    groups, usual = likeness.groups(found)
    assert usual == {"roofline.softmax": 56}
    assert [[one.student for one in group.answers] for group in groups] == [["ada", "bob", "cy"]]
    assert groups[0].likeness == 1.0
    said = told(found)
    assert "roofline.softmax: ada and bob, 100 % alike; also cy" in said and "no charge" in said


@pytest.mark.parametrize("source", ["def f(:", "x = " + "-" * 5000 + "1", "\0", "x" * 100_000])
def test_what_is_no_python_or_nested_too_deep_is_like_nothing(source):
    assert not likeness.parts(source) and likeness.without_words(source) in ("", source)


# ------------------------------------------------------------------------------------------- the page

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\u202e"


def test_nothing_of_a_student_acts_and_nothing_is_fetched():
    evil = {"why": EVIL, "mistake": EVIL, "source": f"def f():\n    return {EVIL!r}", "machine": EVIL, "torch": EVIL}
    found = [answer(EVIL, 0, waits=waits, **evil) for waits in ("a person", "a GPU", "")]
    found += [answer(f"{EVIL}{n}", 8, source=f"{SOFTMAX}\n{evil['source']}") for n in range(2)]
    found += [answer(EVIL, 4, kind="speed", share=0.5, machine=EVIL)]
    said = page.page(EVIL, found, [EVIL], {one.student: EVIL for one in found})
    assert "<script" not in said and "<img src=x" not in said and not set(said) & set("\x1b\u202e")
    assert said.count("&lt;script&gt;alert(1)") > 10
    assert not re.search(r"(?:src|href)=['\"](?!data:image/png;base64,)|@import|url\(", said)


def test_a_page_is_read_aloud_and_in_print():
    found = [answer(f"s{n}", n % 9, mistake="no_mask", source=SOFTMAX, seconds=1.0) for n in range(12)]
    said = told(found)
    assert "<html lang='en'>" in said and "@media print" in said and "<main>" in said
    assert said.count("<img ") == 2 and all("alt='" in tag for tag in re.findall(r"<img [^>]*>", said))
    assert "<th scope='col'" in said and not re.search("<th>|<td></td><td></td>", said)
    levels = [int(level) for level in re.findall(r"<h(\d)", said)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_the_longest_name_of_a_graded_cell_fits_the_title_of_the_picture():
    cells = [cell for path in RELEASES.glob("*/*.ipynb") for cell in json.loads(path.read_text())["cells"]]
    marks = [cell["metadata"].get("nbgrader", {}) for cell in cells]
    longest = max((one["grade_id"] for one in marks if one.get("grade")), key=len)
    rows = items.analysed([answer("ada", 2, longest, kind="words"), answer("ada", 8)])
    with plots.style():
        figure = page._means(rows, rows[0])
        figure.draw_without_rendering()
        title = figure.axes[0]._left_title
        assert longest in title.get_text() and title.get_window_extent().x1 <= figure.bbox.x1


def test_what_feedback_says_has_its_code_as_code():
    said = told([answer("ada", 0, "start.axpy", mistake="no_mask")])
    assert "<code>mask=offs &lt; n</code>" in said and "`" not in said


def contrast(one, other="white") -> float:
    """As WCAG has it, of two colours of matplotlib; what is seen through stands on white."""

    def light(colour) -> float:
        *parts, alpha = to_rgba(colour)
        parts = [alpha * part + 1 - alpha for part in parts]
        red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted((light(one), light(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_words_stand_out_from_their_ground_as_much_as_wcag_aa_asks():
    inks = set(re.findall(r"(?<![-\w])color: (#\w{6})", page.STYLE))
    assert inks == {"#1a1a1a", "#595959"}
    assert all(contrast(ink, ground) >= 4.5 for ink in inks for ground in ("white", "#f4f4f4"))


def test_all_that_pictures_draw_stands_out_from_their_ground_as_much_as_wcag_aa_asks(monkeypatch):
    """4.5 : 1 for words and 3 : 1 for bars and lines; lines on bars too."""
    drawn, real = [], page._picture
    monkeypatch.setattr(page, "_picture", lambda figure, alt: drawn.append(figure) or real(figure, alt))
    told([answer(f"s{n}", n % 9, name) for n in range(12) for name in ("roofline.softmax", "roofline.work")])
    assert len(drawn) == 2
    for figure in drawn:
        (axes,) = figure.axes
        grounds = [figure.patch, axes.patch]
        assert all(contrast(ground.get_facecolor()) == 1 for ground in grounds)
        seen = [one for one in figure.findobj() if one.get_visible() and one not in grounds]
        words = [one for one in seen if isinstance(one, Text) and one.get_text()]
        bars = [one for one in seen if isinstance(one, Rectangle)]
        lines = [one for one in seen if isinstance(one, Line2D)]
        frame = [one for one in seen if isinstance(one, Spine)]
        assert len(words) > 8 and len(bars) >= 2 and len(lines) >= 8 and len(frame) == 2
        assert min(contrast(one.get_color()) for one in words) >= 4.5
        assert min(contrast(one.get_facecolor()) for one in bars) >= 3
        assert min(contrast(one.get_color()) for one in lines) >= 3
        assert min(contrast(one.get_edgecolor()) for one in frame) >= 3
        over = [contrast(line.get_color(), bar.get_facecolor()) for line in axes.lines for bar in bars]
        assert min(over, default=3) >= 3


def test_the_board_has_pseudonyms_alone_and_nobody_who_opted_out():
    fast = {"kind": "speed", "machine": "NVIDIA H200"}
    found = [answer("ada", 4, share=0.9, **fast), answer("bob", 4, share=0.95, board=False, **fast)]
    found += [answer("cy", 4, share=0.8, **fast), answer("dan", 0, share=0.7, waits="a person", **fast)]
    board = told(found).partition("Speed board")[2].partition("<h2>")[0]
    assert re.findall(r"name of (\w+)", board) == ["ada", "cy"]
    assert not re.search(r"(?<!of )\b(ada|bob|cy|dan)\b", board) and "different GPUs" not in board
    mixed = told([*found, replace(found[0], student="eve", machine="NVIDIA A100")])
    assert "timed on different GPUs, so they do not compare: NVIDIA H200 (4), NVIDIA A100 (1)" in mixed


def test_who_waits_is_told_with_the_reason():
    found = [answer("ada", 0, waits="a person", why="because"), answer("bob", 0, waits="a person", kind="words")]
    waits = told([*found, answer("cy", 0, waits="a GPU")]).partition("Who waits")[2].partition("<h2>")[0]
    assert "<td>ada</td><td>roofline.softmax</td><td>because</td>" in waits
    assert "<td>roofline.softmax</td><td>a person</td><td class='n'>1</td><td>bob</td>" in waits, "words are counted"
    assert "<td>roofline.softmax</td><td>a GPU</td><td class='n'>1</td><td></td>" in waits
    many = told([answer(f"s{n:02}", 0, waits="a person", kind="words") for n in range(100)])
    assert "<td class='n'>100</td><td>s00, s01, s02, s03, s04, s05, s06, s07, s08, s09 ...</td>" in many
    assert "Nobody." in told([answer("ada", 8)])


def test_the_distribution_says_what_it_does_not_count():
    found = [answer("ada", 4), answer("bob", 8), answer("cy", 2)]
    assert "Half of the class has 4 points or more, of 8; the least is 2, the most 8.</p>" in told(found)
    found += [answer(name, 0, "why", kind="words", waits="a person") for name in ("ada", "bob")]
    found += [answer("cy", 0, kind="speed", waits="a GPU")]
    said = told(found)
    assert "Half of the class has 4 points or more so far, of 24; the least is 2, the most 8. Not counted: " in said
    assert "answers in words that are not marked yet (2, of 2 students, worth 16 points in all); " in said
    assert "other points that wait (1, of 1 student, worth 8 points in all)." in said


def test_what_is_odd_about_a_hand_in_is_told_and_acts_in_no_page():
    assert "odd about" not in told([answer("ada", 8)])
    said = page.page(LESSON, [answer("ada", 8)], [], {"ada": "a"}, [("ada", f"A zip was handed in {EVIL}")])
    assert "<td>ada</td><td>A zip was handed in &lt;script&gt;" in said and "<script" not in said


# ------------------------------------------------------------------------------------------- from files


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Verdicts of two students, one of whom was not graded yet."""
    monkeypatch.setattr(taken, "HOME", tmp_path)
    for module in (taken, answers):
        monkeypatch.setattr(module, "VERDICTS", tmp_path / "verdicts")
    monkeypatch.setattr(answers.cohort, "gradebook", lambda lesson: None)
    handed = tmp_path / "submitted/ada" / LESSON
    handed.mkdir(parents=True)
    shutil.copy(RELEASES / LESSON / f"{NAME}.ipynb", handed)
    for student in ("ada", "zoe"):
        take(handed, RELEASES / LESSON, tmp_path / taken.TAKEN / student / LESSON)
    path = taken.Item("ada", LESSON, NAME).path
    notebook = json.loads(path.read_text())
    code = notebook["metadata"][CODE]
    code["cells"].append(["roofline_softmax", SOFTMAX])
    code["untouched"].remove("softmax")
    path.write_text(json.dumps(notebook))
    verdict = {"mistake": "no_mask", "seconds": 1.5, "share": None, "text": ["why"]}
    verdict["machine"] = {"name": "a laptop", "torch": "2"}
    (tmp_path / "verdicts/x.json").write_text(json.dumps(verdict))
    shown = {"points": 5.0, "waits": "", "asks": "", "exercise": "roofline.softmax", "verdict": "x.json"}
    cells = {
        "roofline_softmax_check": shown,
        "roofline_work_check": shown | {"exercise": "roofline.work", "verdict": ""},
    }
    path = marks.shown_file("ada", LESSON, NAME, tmp_path / "verdicts")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(cells))
    return tmp_path / "verdicts"


def test_what_the_files_say_is_gathered(folder):
    found, ungraded = answers.gathered(LESSON)
    assert ungraded == ["zoe"]
    work, softmax = found
    assert (work.name, work.tried, work.board) == ("roofline.work", False, True)
    assert (softmax.points, softmax.mistake, softmax.seconds, softmax.machine) == (5.0, "no_mask", 1.5, "a laptop")
    assert softmax.tried and softmax.source.startswith(SOFTMAX)


@pytest.mark.parametrize(
    "place", ["setup", "roofline_softmax", "roofline_softmax_check", "roofline_softmax_speed", "a demonstration", "own"]
)
def test_who_writes_that_they_want_no_board_is_on_none_wherever_they_write_it(folder, place):
    ada, handed = taken.Item("ada", LESSON, NAME), folder.parent / "submitted/ada" / LESSON
    assert ada.on_board()
    notebook = json.loads((handed / f"{NAME}.ipynb").read_text())
    code = [one for one in notebook["cells"] if one["cell_type"] == "code"]
    names = [
        "setup" if "setup" in one["metadata"].get("tags", ()) else one["metadata"].get("nbgrader", {}).get("grade_id")
        for one in code
    ]
    cell = {**code[0], "id": "own", "metadata": {}, "source": "%%writefile x.py\n"}
    if place == "own":
        notebook["cells"].append(cell)
    else:
        cell = code[names.index(None if place == "a demonstration" else place)]
    cell["source"] = "".join(cell["source"]) + "\n# Speed board: no\n"
    (handed / f"{NAME}.ipynb").write_text(json.dumps(notebook))
    take(handed, RELEASES / LESSON, folder.parent / taken.TAKEN / "ada" / LESSON)
    assert not ada.on_board() and not any(one.board for one in answers.gathered(LESSON)[0])


def test_odd_hand_ins_and_cells_that_do_not_end_are_gathered(folder):
    def hand_in(student: str, **files: str):
        handed = folder.parent / "submitted" / student / LESSON
        handed.mkdir(parents=True)
        for name, text in files.items():
            (handed / f"{name}.ipynb").write_text(text)
        take(handed, RELEASES / LESSON, folder.parent / taken.TAKEN / student / LESSON)

    ours, other = ((RELEASES / f"{one}.ipynb").read_text() for one in (f"{LESSON}/{NAME}", "00_start/start"))
    hand_in("bob", roofline=other)
    hand_in("cy", one=ours, two=ours)
    verdict = json.loads((folder / "x.json").read_text())
    (folder / "x.json").write_text(json.dumps(verdict | {"endless": ["The cell a did not end."]}))
    found, ungraded = answers.gathered(LESSON)
    said = answers.odd(LESSON, found)
    assert ungraded == ["bob", "cy", "zoe"]
    words = {"ada": "did not end", "bob": "the notebook of 00_start", "cy": "None of one.ipynb, two.ipynb is called"}
    assert {student for student, _ in said} == {*words}
    assert all(any(word in what for who, what in said if who == student) for student, word in words.items()), said


def test_who_waits_says_why_nothing_of_a_hand_in_could_be_judged(folder):
    """Another lesson's notebook, say: there is no verdict then, and all exercises wait for one reason."""
    why = "nothing of this hand-in could be judged (it is the notebook of 00_start)"
    path = marks.shown_file("ada", LESSON, NAME, folder)
    cells = json.loads(path.read_text())
    unread = {"waits": verdicts.A_PERSON, "why": why, "verdict": "", "points": 0.0}
    path.write_text(json.dumps({name: one | unread for name, one in cells.items()}))
    found, _ = answers.gathered(LESSON)
    waits = told(found).partition("Who waits")[2].partition("<h2>")[0]
    assert f"<td>ada</td><td>roofline.work, roofline.softmax</td><td>{why}</td>" in waits
    assert waits.count(why) == 1


def test_a_page_and_a_table_are_written_for_their_owner_alone(folder, tmp_path, capsys):
    assert command.main(argparse.Namespace(lesson=LESSON, out=tmp_path / "out")) == command.DONE
    html, table = (tmp_path / "out" / f"{LESSON}.{kind}" for kind in ("html", "csv"))
    assert capsys.readouterr().out == f"{html}\n{table}\n"
    assert "zoe" in html.read_text() and not (html.stat().st_mode | table.stat().st_mode) & 0o077
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["exercise"] for row in rows] == ["roofline.work", "roofline.softmax"]
    assert rows[1]["mistake"] == "no_mask" and rows[1]["pseudonym"] == rows[0]["pseudonym"]


def test_pseudonyms_stay_differ_and_lead_back_from_the_seed_alone(folder):
    students = [f"s{n}" for n in range(400)]
    names = answers.pseudonyms(LESSON, students)
    assert len(set(names.values())) == 400 and names == answers.pseudonyms(LESSON, reversed(students))
    verdicts.seed_file(folder, LESSON).write_text("7")
    assert names != answers.pseudonyms(LESSON, students)


@pytest.mark.parametrize("text", ["=1+1", "+a", "-a", "@a", "\ta"])
def test_a_spreadsheet_computes_no_name(text):
    assert export.as_text(text) == f"'{text}" and export.as_text("ada") == "ada"


@pytest.mark.parametrize("separator", [";", "\t", "\n", "\r"])
@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@a", " =1", '"=1', "\uff1d1", "\uff0b1", "\uff0d1", "\uff20a"])
def test_no_cell_begins_with_a_formula_whatever_separates_cells(separator, text, tmp_path):
    """Spreadsheets separate by semicolons where a comma stands in numbers."""
    assert export.as_text(f"x{separator}{text}") == f"x{separator}'{text}"
    with (tmp_path / "x.csv").open("w", newline="") as file:
        csv.writer(file, quoting=export.QUOTED).writerow([1.5, export.as_text(f"x{separator}{text}"), 2])
    with (tmp_path / "x.csv").open(newline="") as file:
        cells = [cell for row in csv.reader(file, delimiter=separator if separator in ";\t" else ",") for cell in row]
    with (tmp_path / "x.csv").open(newline="") as file:
        assert len(next(csv.reader(file))) == 3
    assert not [cell for cell in cells if cell.lstrip(' "').startswith(tuple("=+-@\uff1d\uff0b\uff0d\uff20"))]


def test_words_with_signs_stay_as_they_are():
    for text in ("o'neill-smith@example.org", "a-b; c+d", "roofline.graph (a GPU); why (a person)", None, ""):
        assert export.as_text(text) == text
