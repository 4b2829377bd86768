"""nbgrader's own commands with the referee behind them: a cohort of mixed quality."""

import argparse
import contextlib
import csv
import html
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest
import torch
from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config

from autograder.bank import find
from autograder.classroom import cohort, grading, handed_in, report, trying, verdicts
from autograder.classroom.marks import waits_for
from autograder.classroom.verdicts import Asked, Judging, own_seed
from autograder.judging.verdict import SpeedVerdict, Timed
from autograder.referee.room import NoRoom
from autograder.referee.sandbox import NoSandbox
from autograder.referee.submission import Cell, Submission, extract
from course_lib import device

COURSE = Path(__file__).resolve().parents[2]
UNIT, NAME = "00_start", "start"
pytestmark = [
    pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed"),
    pytest.mark.xdist_group("cohort"),  # one worker takes them all: their cohort takes a minute and more to grade
]

KERNEL = find("start.axpy/right/masked").source
CONTROLS = "\x1b[2J\x00 \u202eevil\u2066"
LINKS = "[a](figure.html) ![b](figure.png) [c](../../../submitted/eve/x.html) [d](//x) <a href='http:figure.html'>e</a>"
LINKS += " [f](https://elsewhere.org/x) &#27;&#x202e;"
ACTIVE = "an answer <script>alert(1)</script><img src='x' onerror='alert(1)'> [a](java&#115;cript:alert(1)) $a<b$"
ONE_CASE_WRONG = KERNEL + "\n_axpy = axpy\ndef axpy(a, x, y, out):\n    _axpy(a, x, y, out) if x.numel() else 1 / 0\n"
# a constant that cannot travel to where kernels are compiled
NOT_SEEN = KERNEL.replace("n, a, BLOCK: tl", "n, a, how: tl.constexpr, BLOCK: tl").replace(
    "a, BLOCK=", "a, object(), BLOCK="
)
COHORT = {
    "right": lambda nb: answer(nb, KERNEL),
    "one_case_wrong": lambda nb: answer(nb, ONE_CASE_WRONG),
    "waits_for_a_person": lambda nb: answer(nb, NOT_SEEN),
    "untouched": lambda nb: None,
    "masks_forgotten": lambda nb: answer(nb, find("start.axpy/mistakes/no_mask").source),
    "check_deleted": lambda nb: (answer(nb, KERNEL), drop(nb, "start_axpy_check"), spoil(nb)),
    "check_rewritten": lambda nb: rewrite(nb, "start_axpy_check", "5.0"),
    "scratch_cell_raises": lambda nb: (
        answer(nb, KERNEL),
        add(nb, "1 / 0\n%timeit axpy"),
        add(nb, "!ls /"),
        add(nb, "exit()"),
        add(nb, "input()"),
    ),
    "kills_its_process": lambda nb: (
        answer(nb, "import os\ndef axpy(a, x, y, out):\n    os._exit(0)"),
        add(nb, "open('it_ran', 'w')"),
    ),
    "acts_in_a_browser": lambda nb: (
        answer(nb, KERNEL),
        rewrite(nb, "start_axpy_floor", ACTIVE),
        add(nb, ACTIVE, "markdown"),
        add(nb, ACTIVE, "raw"),
        add(nb, "half of a letter: \ud800"),
    ),
    "links_and_controls": lambda nb: (
        answer(nb, f"def axpy(a, x, y, out):\n    raise ValueError({CONTROLS!r})"),
        rewrite(nb, "start_axpy_floor", f"own words {LINKS} {CONTROLS}"),
        add(nb, f"# {CONTROLS}"),
        nb["metadata"].update(title=CONTROLS),
    ),
    "in_a_demonstration": lambda nb: next(c for c in nb["cells"] if is_shown(c)).update(source=KERNEL),
    "exits": lambda nb: answer(nb, f"import os\n{KERNEL}\nos._exit(0)"),
    "merged": lambda nb: answer(nb, f"<<<<<<< HEAD\n{KERNEL}\n=======\n{KERNEL}\n>>>>>>> mine\n"),
    "raises_half_of_a_letter": lambda nb: answer(nb, "def axpy(a, x, y, out):\n    raise ValueError(chr(0xD800))"),
    "words_elsewhere": lambda nb: (answer(nb, KERNEL), add(nb, "12 bytes for each element, so ...", "markdown")),
    "looks_for_grades": lambda nb: answer(nb, "import autograder.exercises"),
}


def cell(nb, grade_id):
    return next(c for c in nb["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == grade_id)


def is_shown(cell):
    """A demonstration cell."""
    marks = cell["metadata"]
    return cell["cell_type"] == "code" and not marks.get("nbgrader") and "setup" not in marks.get("tags", [])


def rewrite(nb, grade_id, source):
    cell(nb, grade_id)["source"] = source


def answer(nb, source):
    rewrite(nb, "start_axpy", source)


def drop(nb, grade_id):
    nb["cells"].remove(cell(nb, grade_id))


def spoil(nb):
    """What only other programs than a notebook write into its metadata."""
    nb["metadata"][handed_in.NOTES] = 5
    for one in nb["cells"]:
        if "nbgrader" not in one["metadata"] and "tags" not in one["metadata"]:
            one["metadata"] = {"nbgrader": {"grade_id": ["no", "name"], "schema_version": 99}}


def add(nb, source, kind="code"):
    new = {"cell_type": kind, "source": source, "metadata": {}, "id": f"x{len(nb['cells'])}"}
    nb["cells"].insert(3, new | ({"outputs": [], "execution_count": None} if kind == "code" else {}))


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A copy of the course in which the cohort was graded: name -> (auto score, needs a person) of the check cell."""
    course = tmp_path_factory.mktemp("course")
    for part in ("autograder", "course_lib", "solutions/" + UNIT, "notebooks/" + UNIT):
        shutil.copytree(COURSE / part, course / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(COURSE / "nbgrader_config.py", course)
    release = (COURSE / "notebooks" / UNIT / f"{NAME}.ipynb").read_text()
    for student, change in COHORT.items():
        notebook = json.loads(release)
        change(notebook)
        write(course, student, json.dumps(notebook))
    write(course, "damaged", release[:1000])
    write(course, "renamed", answered(release), "my lesson (2).ipynb")
    for name in ("old.ipynb", "new.ipynb"):
        write(course, "two_renamed", answered(release), name)
    write(course, "another_file", "a summary", "lesson.pdf")
    write(course, "utf16", answered(release).encode("utf-16"))
    write(course, "merged_file", json.dumps(json.loads(release), indent=1).replace(' "cells"', "<<<<<<< HEAD\n", 1))
    hostile(course, answered(release))
    run(course, "generate_assignment", UNIT)
    kernel = course / "jupyter/kernels/python3"
    kernel.mkdir(parents=True)
    started = {"argv": ["touch", str(course / "kernel_started")], "display_name": "Python", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(started))
    (course / "said").write_text(run(course, "autograde", UNIT, JUPYTER_PATH=str(course / "jupyter")))
    run(course, "generate_feedback", UNIT)
    return course


def write(course, student, text, name=f"{NAME}.ipynb"):
    folder = course / "submitted" / student / UNIT
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def hostile(course, notebook):
    """Whatever stops nbgrader, or brings it to read what is not the student's."""
    write(course, "hostile", notebook)
    there = course / "submitted" / "hostile" / UNIT
    for name in ("x.ipynb", "x.damaged", f"{NAME}.damaged", f"{NAME}.original", "timestamp.damaged"):
        (there / name).mkdir()
        (there / name / "x").write_text("x")
    (there / "book.html").symlink_to(course / "gradebook.db")
    (there / "solutions").symlink_to(course / "solutions" / UNIT)
    (there / os.fsdecode(b"L\xf6sung.ipynb")).write_text(notebook)
    os.mkfifo(there / "timestamp.txt")
    for student in ("links_a_notebook", "links_a_lesson", "links_nowhere"):
        (course / "submitted" / student).mkdir()
    (course / "submitted" / "links_a_student").symlink_to(course / "submitted" / "right")
    (course / "submitted" / "links_a_lesson" / UNIT).symlink_to(course / "solutions" / UNIT)
    (course / "submitted" / "links_nowhere" / UNIT).symlink_to("/nowhere")
    write(course, "links_a_notebook", "", "x")
    there = course / "submitted" / "links_a_notebook" / UNIT
    (there / f"{NAME}.ipynb").symlink_to(course / "submitted" / "right" / UNIT / f"{NAME}.ipynb")
    (there / f"{NAME}.damaged").mkdir()


def answered(release):
    notebook = json.loads(release)
    answer(notebook, KERNEL)
    return json.dumps(notebook)


def run(course, *words, **more):
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(course),
        **more,
    }
    done = subprocess.run(
        ["nbgrader", *words], cwd=course, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def marks(course, name="start_axpy_check"):
    with sqlite3.connect(course / "gradebook.db") as book:
        rows = book.execute(
            "select s.student_id, g.auto_score, g.needs_manual_grade from grade g "
            "join submitted_notebook n on g.notebook_id = n.id join submitted_assignment s on n.assignment_id = s.id "
            "join base_cell c on g.cell_id = c.id where c.name = ?",
            [name],
        ).fetchall()
    return {student: (score, bool(person)) for student, score, person in rows}


def test_every_submission_gets_the_mark_it_earned(graded):
    full = {"right", "check_deleted", "scratch_cell_raises", "acts_in_a_browser", "words_elsewhere", "renamed"}
    full |= {"hostile", "utf16"}
    everybody = (*COHORT, *REASONS)
    expected = {student: (5.0 if student in full else 0.0, False) for student in everybody}
    expected |= dict.fromkeys(UNREAD, (0.0, True))
    expected |= {"one_case_wrong": (3.57, False), "waits_for_a_person": (0.0, True)}
    assert marks(graded) == expected


def test_what_is_graded_by_hand_is_left_to_people(graded):
    by_hand = marks(graded, "start_axpy_floor")
    assert by_hand["acts_in_a_browser"] == (None, True) and by_hand["right"] == (0.0, False)
    assert by_hand["words_elsewhere"] == (0.0, True), "the answer may stand in a cell of their own"


def test_no_notebook_was_executed_and_no_kernel_started(graded):
    """In place of Python the cohort's kernel is a program that leaves a file."""
    assert list(graded.rglob("it_ran")) == [] and not (graded / "kernel_started").exists()


def test_feedback_names_the_mistake_and_shows_the_students_code(graded):
    page = (graded / "feedback" / "masks_forgotten" / UNIT / f"{NAME}.html").read_text()
    assert "Give both loads and the store" in page
    assert "tl.program_id" in page


def test_the_list_of_marks_in_feedback_has_the_names_of_exercises(graded):
    page = (graded / "feedback" / "right" / UNIT / f"{NAME}.html").read_text()
    marks = page[page.index('id="toc"') : page.index("</ol>")]
    found = re.findall(r"<a href=\"#(\w+)\">(.*?)</a> \(Score", marks)
    assert found[0] == ("start_axpy_check", "start.axpy") and all(place == name for place, name in found[1:])


def test_feedback_begins_with_what_waits_and_what_was_odd_and_fits_a_phone(graded):
    page = (graded / "feedback" / "words_elsewhere" / UNIT / f"{NAME}.html").read_text()
    first = page[: page.index('<div id="toc">')]
    assert "Points may still come. These wait: " in first and page.count("These wait: ") == 1
    assert "width=device-width" in first and first.count("</head>") == 1
    page = (graded / "feedback" / "in_a_demonstration" / UNIT / f"{NAME}.html").read_text()
    assert "is defined in a demonstration cell" in page[: page.index('<div id="toc">')]


def test_markdown_of_a_student_is_shown_but_does_nothing(graded):
    page = (graded / "feedback" / "acts_in_a_browser" / UNIT / f"{NAME}.html").read_text()
    assert page.count("an answer &lt;script&gt;") == 3 and "$a&lt;b$" in page
    assert not re.search(r"<script>alert|<[^>]*onerror|<[^>]*(javascript|java&#115;cript):alert", page)


def test_no_link_of_a_student_leads_to_a_file_and_no_control_reaches_a_page(graded):
    page = (graded / "feedback" / "links_and_controls" / UNIT / f"{NAME}.html").read_text()
    words = page[page.index("own words") : page.index("[2J", page.index("own words"))]
    assert re.findall(r"(?:href|src)=\"([^\"]*)", words) == ["https://elsewhere.org/x"]
    assert not re.search("[\x00-\x08\x0b\x0e-\x1f\u202a-\u202e\u2066-\u2069]|&#27;|&#x202e;", page)
    kept = [json.loads(path.read_text()) for path in (graded / "verdicts").glob("*.json")]
    assert any("raised ValueError" in one["html"] and "[2J" in one["html"] for one in kept)
    assert not [one for one in kept if re.search("[\x00\x1b\u202e]", one["html"] + "".join(one["text"]))]


@pytest.fixture
def formgrader(graded):
    """Ask the formgrader of that course."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [sys.executable, "-m", "jupyter_server", "--no-browser", f"--port={port}", "--ip=127.0.0.1", "--allow-root"]
    line += ["--IdentityProvider.token=secret", f"--ServerApp.root_dir={graded}"]
    line += ["--ServerApp.jpserver_extensions={'nbgrader.server_extensions.formgrader': True}"]
    environment = os.environ | {"PYTHONPATH": str(graded)}
    with subprocess.Popen(line, cwd=graded, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as it:

        def asked(path, data=None):
            headers = {"Authorization": "token secret"}
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
            return urllib.request.urlopen(request, timeout=200)

        for _ in range(240):
            try:
                asked("/api/status").close()
                break
            except OSError:
                time.sleep(0.25)
        yield asked
        it.terminate()


def test_formgrader_serves_what_was_handed_in_without_rights_and_its_button_reads_it_here(graded, formgrader):
    write(graded, "right", "<script>alert(1)</script>", "figure.html")
    with sqlite3.connect(graded / "gradebook.db") as book:
        submission = book.execute("select id from submitted_notebook").fetchone()[0]
    path = f"/formgrader/submissions/{submission}/..%2f..%2f..%2fsubmitted/right/{UNIT}/figure.html"
    with formgrader(path) as answer:
        assert answer.status == 200 and answer.headers["Content-Security-Policy"].startswith("sandbox;")
    before = marks(graded)
    (graded / "verdicts/handed_in/right" / UNIT / f"{NAME}.ipynb").write_text("{")
    button = f"/formgrader/api/submission/{UNIT}/right/autograde"
    with cohort.only_one(graded / "verdicts/.grading"), formgrader(button, b"") as answer:
        assert "Another run" in json.loads(answer.read())["error"]
    with formgrader(button, b"") as answer:
        said = json.loads(answer.read())
    assert said["success"], said
    assert marks(graded) == before
    assert "not looked at: figure.html" in (graded / "autograded/right" / UNIT / f"{NAME}.ipynb").read_text()
    with formgrader("/formgrader/api/assignments") as answer:
        assert json.loads(answer.read())[0]["num_submissions"] >= len(COHORT), "it looks where it looked before"


@pytest.mark.parametrize("template", [pytest.param("feedback", marks=pytest.mark.slow), "formgrade"])
def test_formgrader_and_feedback_both_clean_what_they_show(template, graded):
    shown = f"""
from nbconvert.exporters import HTMLExporter
from nbgrader.apps import NbGrader
from nbgrader.server_extensions.formgrader import handlers
from traitlets.config import Config
import nbformat
app = NbGrader()
app.load_config_file()
config = Config(app.config)
config.HTMLExporter.template_name = {template!r}
config.HTMLExporter.extra_template_basedirs = [handlers.template_path]
exporter = HTMLExporter(config=config)
print(exporter.environment.filters["strip_files_prefix"]("<h2>title</h2><script>alert(1)</script>"))
"""
    done = subprocess.run([sys.executable, "-c", shown], cwd=graded, capture_output=True, text=True)
    assert done.stdout == "<h2>title</h2>&lt;script&gt;alert(1)&lt;/script&gt;\n", done.stderr


def test_no_report_tells_the_seed_and_every_text_has_inputs_of_its_own(graded):
    """Equal texts have equal ones, so nobody's mark depends on when or for whom it was made."""
    seed = (graded / "verdicts" / f"{UNIT}.seed").read_text()
    assert int(seed) > 2**64
    pages = [*(graded / "feedback").rglob("*.html"), *(graded / "autograded").rglob("*.ipynb")]
    texts = [path.read_text() for path in (*pages, *(graded / "verdicts").glob("*.json"))]
    assert not [text for text in texts if seed in text]
    told = {path: re.findall(r"seed hidden \(hash (\w{8})\)", path.read_text()) for path in pages}
    assert all(len(set(hashes)) <= 1 for hashes in told.values()), "one of a submission"
    assert 1 < len({hashes[0] for hashes in told.values() if hashes})
    one, same, other = (Submission((Cell("f", text),)) for text in ("f = 1", "f = 1", "f = 2"))
    assert own_seed(5, one) == own_seed(5, same) not in (own_seed(5, other), own_seed(6, one))


def test_what_grading_wrote_is_closed_to_others(graded):
    rooms = [graded / room for room in ("gradebook.db", "verdicts", "autograded", "feedback", "submitted", "solutions")]
    found = [*rooms, *(graded / "verdicts").rglob("*"), *(graded / "feedback").glob("*"), *graded.glob("autograded/*")]
    assert not [(path, oct(path.stat().st_mode)) for path in found if path.stat().st_mode & 0o077]


def test_what_was_handed_in_is_as_it_came(graded):
    there = graded / "submitted" / "damaged" / UNIT
    assert [path.name for path in there.iterdir()] == [f"{NAME}.ipynb"]
    assert (there / f"{NAME}.ipynb").stat().st_size == 1000


def test_nothing_beside_a_notebook_comes_into_feedback_or_what_formgrader_shows(graded):
    shown = [p for room in ("autograded", "feedback", "verdicts/handed_in") for p in (graded / room).glob("*/*/*")]
    assert {path.name for path in shown} == {f"{NAME}.ipynb", f"{NAME}.html"}
    assert not [path for path in (graded / "feedback").rglob("*") if path.is_symlink()]
    page = (graded / "feedback" / "hostile" / UNIT / f"{NAME}.html").read_text()
    assert "book.html (a link)" in page


def test_feedback_that_is_older_than_its_mark_is_made_again_and_not_released(graded, tmp_path):
    course = tmp_path / "course"
    shutil.copytree(graded, course, symlinks=True, ignore=shutil.ignore_patterns("hostile"))
    for one in [*course.glob("autograded/*"), *course.glob("feedback/*")]:
        if one.name not in ("right", "words_elsewhere"):
            shutil.rmtree(one)
    run(course, "generate_feedback", UNIT)  # tests before this one may have graded again
    names = NAME, UNIT, "words_elsewhere"
    page, other = (course / "feedback" / who / UNIT / f"{NAME}.html" for who in (names[2], "right"))
    was, before = page.read_text(), other.stat().st_mtime_ns
    (course.with_name("course-exchange")).mkdir()
    old = f"{names[2]}: the marks changed since this page was made; first nbgrader generate_feedback {UNIT}"
    assert old not in run(course, "release_feedback", UNIT)
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        book.find_grade("start_axpy_floor", *names).manual_score = 0.5
        book.find_comment("start_axpy_floor", *names).manual_comment = "Half of it."
        book.db.commit()
    said = run(course, "release_feedback", UNIT)
    assert old in said and said.count("the marks changed") == 1
    shutil.copytree(course / "autograded" / names[2], course / "autograded" / "nobody")
    made = run(course, "generate_feedback", UNIT)
    assert "not recognized by" not in made and "nobody has no marks" in made
    assert "Half of it." in page.read_text() and "Half of it." not in was
    assert other.stat().st_mtime_ns == before, "the other pages stay"
    assert old not in run(course, "release_feedback", UNIT)


REASONS = {
    "damaged": f"{NAME}.ipynb was not graded: it is no JSON",
    "renamed": f"my lesson (2).ipynb was taken for {NAME}.ipynb",
    "two_renamed": f"None of new.ipynb, old.ipynb is called {NAME}.ipynb",
    "another_file": "No notebook was handed in. The folder held: lesson.pdf.",
    "in_a_demonstration": "`axpy` is defined in a demonstration cell",
    "exits": "The process ended while it ran the cells of this notebook.",
    "merged": "The cell start_axpy holds the marks of a merge that was not finished",
    "scratch_cell_raises": "The cell your cell 1 asks for input at line 1: input()",
    "merged_file": "is the mark of a merge that was not finished (<<<<<<<)",
    "utf16": "The file is not UTF-8; it was read as utf-16.",
    "hostile": "Also handed in, and not looked at: L?sung.ipynb, book.html (a link), solutions (a link)",
    "links_a_notebook": "No notebook was handed in. The folder held: start.damaged (a folder), start.ipynb (a link)",
    "links_a_lesson": "In place of a folder with a notebook, a link was handed in.",
    "links_a_student": "the folder of this student is a link",
    "links_nowhere": "In place of a folder with a notebook, a link was handed in.",
}


@pytest.mark.parametrize("student", REASONS)
def test_what_was_not_the_expected_notebook_is_said(graded, student):
    page = (graded / "feedback" / student / UNIT / f"{NAME}.html").read_text()
    assert report.marked(REASONS[student]) in page


UNREAD = "damaged", "two_renamed", "another_file", "merged_file", "links_a_notebook"
UNREAD += "links_a_lesson", "links_a_student", "links_nowhere"


def test_a_hand_in_of_which_nothing_can_be_judged_waits_for_a_person_and_is_exported_as_no_zero(graded, tmp_path):
    run(graded, "export", "--to", str(tmp_path / "grades.csv"))
    run(graded, "export", "--to", str(tmp_path / "canvas.csv"), "--exporter=autograder.classroom.lms.Canvas")
    with (tmp_path / "grades.csv").open(newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    with (tmp_path / "canvas.csv").open(newline="") as file:
        cells = {row[3]: row[5] for row in csv.reader(file)}
    for student in UNREAD:
        assert "start.axpy (a person)" in rows[student]["waits"] and REASONS[student] in rows[student]["why"]
        assert cells[student] == "" and marks(graded)[student] == (0.0, True)
        assert "(a person)" in rows[student]["waits"].replace("start.axpy (a person)", ""), (
            "words can be read by nobody"
        )
    assert cells["untouched"] == "0" and not rows["untouched"]["waits"], "an empty lesson is a hand-in that was judged"
    told = [line for line in (graded / "said").read_text().splitlines() if line.startswith("two_renamed: ")]
    assert told == [f"two_renamed: {REASONS['two_renamed']}, so none was graded. Rename the one that counts."]


def test_a_cell_that_waits_for_ever_is_told_the_instructor(graded):
    assert f"scratch_cell_raises: {REASONS['scratch_cell_raises']}" in (graded / "said").read_text()


@pytest.mark.parametrize(
    "student",
    [
        "in_a_demonstration",
        "exits",
        "merged_file",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("merged", "utf16")),
    ],
)
def test_feedback_gives_the_reasons_that_a_rehearsal_gives(graded, student, capsys):
    path = graded / "submitted" / student / UNIT / f"{NAME}.ipynb"
    trying.main(argparse.Namespace(notebook=path, lesson=None, unsafe_no_sandbox=False, seed=20))
    told = "".join(capsys.readouterr())
    said = re.findall(r"put right: (.*)|^ +\d/5  (start.*)|can be read: (.*?)\. Grading", told, re.MULTILINE)
    page = html.unescape((graded / "feedback" / student / UNIT / f"{NAME}.html").read_text())
    page = re.sub("</?code>", "`", page)
    assert said and all("".join(one) in page for one in said)


class Failing:
    """A referee that is wrong about what it is given."""

    def __init__(self, error):
        self.error = error

    def examine(self, exercise, seed):
        raise self.error

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize(
    "error", [NotImplementedError("bits8"), RuntimeError("transform"), ValueError(5), MemoryError()]
)
def test_a_fault_of_the_referee_costs_nobody_a_grade_and_ends_no_run(error, tmp_path):
    release = nbformat.read(COURSE / "notebooks" / UNIT / f"{NAME}.ipynb", as_version=4)
    with Judging(extract(release, release), release, 1, tmp_path) as judging:
        judging.referee = Failing(error)
        verdict = judging.verdict(Asked("start.axpy", speed=False))
    assert (verdict["points"], verdict["pending"]) == (0, True) and type(error).__name__ in verdict["html"]


@pytest.mark.parametrize("error", [NoRoom("no memory"), NoSandbox("gone"), torch.OutOfMemoryError("all"), OSError(28)])
def test_what_would_be_the_same_for_everybody_ends_the_run(error, tmp_path):
    release = nbformat.read(COURSE / "notebooks" / UNIT / f"{NAME}.ipynb", as_version=4)
    with Judging(extract(release, release), release, 1, tmp_path) as judging:
        judging.referee = Failing(error)
        with pytest.raises(type(error)):
            judging.verdict(Asked("start.axpy", speed=False))


@pytest.mark.parametrize("marks", [{handed_in.PERSON: "a link", handed_in.CODE: Submission(()).as_data()}, {}])
def test_a_notebook_that_cannot_be_taken_apart_goes_to_a_person(marks, tmp_path):
    release = nbformat.read(COURSE / "notebooks" / UNIT / f"{NAME}.ipynb", as_version=4)
    release.metadata.update(marks)
    judged = grading.JudgedNotebook(release=str(COURSE / "notebooks"), verdicts=str(tmp_path))
    names = {"assignment": UNIT, "notebook": NAME, "student": "ada"}
    notebook, _ = judged.preprocess(release, {"nbgrader": names})
    checks = [cell for cell in notebook.cells if verdicts.is_check(cell)]
    assert checks and all(waits_for(cell) for cell in checks)


def test_only_known_takes_the_verdict_of_a_lower_tier_and_judges_nothing(tmp_path, monkeypatch):
    """Such as that of a fleet without a GPU, on a head that has one."""
    release = nbformat.read(COURSE / "notebooks" / UNIT / f"{NAME}.ipynb", as_version=4)
    release.metadata[handed_in.CODE] = extract(release, release).as_data()
    kept = {"points": 5.0, "out_of": 5.0, "waits": "", "html": "", "tier_of_file": "interpreter", "file": "x.json"}
    monkeypatch.setattr(device, "TIER", "gpu")
    monkeypatch.setattr(Judging, "known", lambda self, asked: kept)
    monkeypatch.setattr(Judging, "made", lambda self, asked: pytest.fail("it was judged"))
    config = Config(JudgedNotebook={"release": str(COURSE / "notebooks"), "verdicts": str(tmp_path)})
    app = grading.Autograde(CourseDirectory(root=str(tmp_path), assignment_id=UNIT), only_known=True, config=config)
    monkeypatch.setattr(cohort, "begin", lambda *_: ([], []))
    monkeypatch.setattr(grading, "without_verdicts", lambda lesson: [])
    monkeypatch.setattr(grading.converters.Autograde, "start", lambda app: None)
    app.start()
    names = {"assignment": UNIT, "notebook": NAME, "student": "ada"}
    notebook, _ = grading.JudgedNotebook(parent=app).preprocess(release, {"nbgrader": names})
    assert cell(notebook, "start_axpy_check").outputs[-1].metadata.speed_of_light.verdict == "x.json"


@pytest.mark.parametrize("folder", ["submitted", "verdicts/handed_in"])
def test_a_notebook_that_was_not_read_here_is_not_graded(folder, tmp_path):
    """Should nbgrader ever begin another way."""
    resources = {"nbgrader": {"assignment": UNIT, "student": "eve"}, "metadata": {"path": f"/x/{folder}/eve/{UNIT}"}}
    with contextlib.nullcontext() if "verdicts" in folder else pytest.raises(ValueError, match="was not written"):
        grading.TakenNotebook().preprocess(nbformat.v4.new_notebook(), resources)


def test_why_points_for_speed_wait_is_said_beside_the_measurement():
    row = Timed("4096 rows", 1e-4, 0.9e-4, 1.1e-4, 0.9e-4)
    waits = "3 points wait for a person. Left running after the call: 1 thread."
    verdict = SpeedVerdict("roofline.chain", "gpu", 0.0, 3.0, (row,), note=waits, pending=True)
    assert waits in report.speed_html(verdict) and waits in report.speed_lines(verdict)


def test_an_untouched_stub_waits_for_nobody_and_is_not_run(tmp_path):
    release = nbformat.read(COURSE / "notebooks/01_roofline/roofline.ipynb", as_version=4)
    with Judging(extract(release, release), release, 1, tmp_path) as judging:
        kept = {asked: judging.verdict(asked) for asked in judging.asked}
        assert not judging.referee.room.ran
    assert {(one["points"], one["pending"]) for one in kept.values()} == {(0, False)}
    assert "not all cases are right" in kept[Asked("roofline.chain", speed=True)]["text"][0]
    said = kept[Asked("roofline.graph", speed=False)]["text"][0]
    assert said == "roofline.graph: `run_many` is not written yet: its cell is still the empty one."


@pytest.mark.skipif(device.TIER == "gpu", reason="there is a GPU here")
def test_what_was_written_for_a_gpu_waits_for_one(tmp_path):
    release = nbformat.read(COURSE / "notebooks/01_roofline/roofline.ipynb", as_version=4)
    written = json.loads(json.dumps(release))
    rewrite(written, "roofline_graph", "def run_many(*a): pass")
    with Judging(extract(release, written), release, 1, tmp_path) as judging:
        assert judging.verdict(Asked("roofline.graph", speed=False))["pending"]


@pytest.mark.parametrize("who", [["--student", "right"], pytest.param([], marks=pytest.mark.slow)], ids=["one", "all"])
def test_grading_again_reads_the_verdicts_and_changes_nothing(graded, who):
    before, verdicts = marks(graded), sorted((graded / "verdicts").glob("*.json"))
    times = [path.stat().st_mtime_ns for path in verdicts]
    run(graded, "autograde", UNIT, "--force", *who)
    assert marks(graded) == before
    assert [path.stat().st_mtime_ns for path in sorted((graded / "verdicts").glob("*.json"))] == times


SOFTMAX = "autograder/exercises/roofline/softmax.py"
EACH = {"roofline.work", "roofline.softmax", "flash.tiled"}
CHANGES = {
    "judging": ("autograder/judging/judge.py", "CHANGED = 1", EACH),
    "what judges import": ("course_lib/numerics/sums.py", "CHANGED = 1", EACH),
    "what a lesson imports": ("course_lib/simulated_gpu.py", "CHANGED = 1", {"roofline.work", "roofline.softmax"}),
    "a lesson's words": ("solutions/01_roofline/roofline.py", "CHANGED = 1", set()),
    "what other lessons import": ("course_lib/models/siglip/steps.py", "CHANGED = 1", set()),
    "what no lesson imports": ("course_lib/check_install.py", "CHANGED = 1", set()),
    "a probe": ("autograder/inside/probes/tiling.py", "CHANGED = 1", {"flash.tiled"}),
    "another probe": ("autograder/inside/probes/towers.py", "CHANGED = 1", set()),
    "the referee": ("autograder/referee/referee.py", "CHANGED = 1", EACH),
    "an exercise": (SOFTMAX, "CHANGED = 1", {"roofline.softmax"}),
    "what an exercise imports": (SOFTMAX.replace(".py", "_mistakes.py"), "CHANGED = 1", {"roofline.softmax"}),
    "a comment": (SOFTMAX, "# changed", set()),
    "pages": ("autograder/classroom/report.py", "CHANGED = 1", set()),
    "a figure": ("course_lib/plots/roofs.py", "CHANGED = 1", set()),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_verdicts_are_made_anew_where_what_decides_them_means_something_else(kind, monkeypatch):
    changed, line, anew = CHANGES[kind]
    assert (COURSE / changed).is_file()
    read = Path.read_text

    def edited(self, **how):
        return read(self, **how) + f"\n{line}\n" * (self == COURSE / changed)

    before = {name: verdicts.grader_hash.__wrapped__(name) for name in EACH}
    monkeypatch.setattr(Path, "read_text", edited)
    assert {name for name in EACH if verdicts.grader_hash.__wrapped__(name) != before[name]} == anew


@pytest.mark.slow
def test_a_plain_run_says_which_exercises_changed_since(graded):
    path = graded / "autograder/exercises/start/axpy.py"
    before = path.read_text()
    said = run(graded, "autograde", UNIT)
    assert "changed after" not in said and "is not what lies there now" not in said
    path.write_text(f"{before}\nCHANGED = 1\n")
    said = run(graded, "autograde", UNIT)
    path.write_text(before)
    assert "start.axpy changed after some submissions were graded. Their marks stay; --force" in said


NEUTRAL = Asked("roofline.softmax", speed=False), Asked("roofline.softmax", speed=True)


@pytest.fixture
def made_on(tmp_path, monkeypatch):
    """Ask for both verdicts on a machine; each made there says so. Returns where they were made."""

    def judged(tier, name, alone=True):
        def made(judging, asked):
            kept = "shared" if asked.speed and tier == "gpu" and not alone else tier
            return {"tier_of_file": kept, "made on": name}

        monkeypatch.setattr(Judging, "made", made)
        monkeypatch.setattr(device, "TIER", tier)
        with Judging(Submission(()), nbformat.v4.new_notebook(), 1, tmp_path, alone) as judging:
            return [judging.verdict(asked)["made on"] for asked in NEUTRAL]

    return judged


def test_a_verdict_holds_on_machines_of_other_kinds_and_the_higher_tier_wins(made_on, tmp_path):
    assert made_on("interpreter", "a laptop") == ["a laptop"] * 2
    assert made_on("interpreter", "another processor") == ["a laptop"] * 2
    assert made_on("gpu", "an H200") == ["an H200"] * 2, "what a GPU knows better is asked for there"
    assert made_on("interpreter", "the head node") == made_on("gpu", "an A100") == ["an H200"] * 2
    assert len(list(tmp_path.glob("*.json"))) == 4


def test_points_for_speed_wait_for_a_gpu_that_nobody_else_uses(made_on):
    assert made_on("gpu", "shared", alone=False) == ["shared"] * 2
    assert made_on("interpreter", "a laptop") == made_on("gpu", "shared too", alone=False) == ["shared"] * 2
    assert made_on("gpu", "alone") == ["shared", "alone"], "only speed is measured anew"
    assert made_on("gpu", "shared again", alone=False) == ["shared", "alone"]


def test_of_two_that_judge_the_same_the_first_is_kept(made_on, tmp_path, monkeypatch):
    """A lost node may still be at work when its task begins anew elsewhere."""
    assert made_on("interpreter", "first") == ["first"] * 2
    with monkeypatch.context() as patched:
        patched.setattr(Judging, "known", lambda self, asked: None)
        assert made_on("interpreter", "second") == ["first"] * 2


def test_where_a_gpu_is_shared_an_answer_is_judged_and_its_speed_waits(monkeypatch):
    from autograder import exercise as exercises
    from autograder.judging.judge import NOT_ALONE
    from autograder.judging.verdict import CaseVerdict, Verdict
    from autograder.referee.referee import Referee

    softmax = exercises.get("roofline.softmax")
    monkeypatch.setattr(device, "TIER", "gpu")
    for right, waits in ((True, verdicts.A_GPU), (False, "")):
        referee = Referee(Submission(()), alone=False)
        verdict = Verdict(softmax.name, "gpu", 5, 8.0 * right, 8.0, (CaseVerdict("one", "n = 1", right),))
        referee.verdicts[softmax.name, 5] = verdict
        said = referee.examine_speed(softmax, 5)
        assert (said.note == NOT_ALONE) == right and verdicts.stored(said)["waits"] == waits and said.points == 0


@pytest.mark.slow
def test_points_that_waited_are_paid_when_they_are_settled(graded):
    """The last test here: it changes the cohort's marks."""
    waits = next(p for p in (graded / "verdicts").glob("*.json") if json.loads(p.read_text())["pending"])
    waits.write_text(json.dumps(json.loads(waits.read_text()) | {"points": 5.0, "pending": False, "waits": ""}))
    run(graded, "autograde", UNIT, "--student", "waits_for_a_person", "--force")
    assert marks(graded)["waits_for_a_person"] == (5.0, False)


@pytest.mark.slow
def test_what_is_handed_in_again_is_graded_whatever_its_time_and_without_one_it_is_named(graded):
    """After the last test: it changes marks too."""
    student, release = "masks_forgotten", (COURSE / "notebooks" / UNIT / f"{NAME}.ipynb").read_text()
    write(graded, student, answered(release))
    said = run(graded, "autograde", UNIT)
    assert f"What was graded is not what lies there now: {student}\n" in said
    assert marks(graded)[student] == (0.0, False)
    write(graded, student, b"2026-01-02 10:00:00 UTC", handed_in.STAMP)
    assert "is not what lies there now" not in run(graded, "autograde", UNIT)
    assert marks(graded)[student] == (5.0, False)
    write(graded, student, release)
    write(graded, student, b"2026-01-01 10:00:00 UTC", handed_in.STAMP)  # the earlier one, which was on time
    run(graded, "autograde", UNIT)
    assert marks(graded)[student] == (0.0, False)
