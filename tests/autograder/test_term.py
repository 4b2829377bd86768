"""What a term brings: a roster, late days, extensions, and tables of marks for Canvas, Moodle and Gradescope."""

import argparse
import csv
import os
import shutil
import subprocess
import sys
import zipfile
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory
from nbgrader.plugins import FileNameCollectorPlugin
from nbgrader.preprocessors import AssignLatePenalties, SaveCells
from traitlets.config import Config, PyFileConfigLoader

from autograder.classroom import cohort, collecting, export, grading, late, lms, marks, roster
from autograder.classroom.verdicts import is_check
from course_lib.places import environment

COURSE = Path(__file__).resolve().parents[2]
LESSON, NAME = "01_roofline", "roofline"
RELEASE = nbformat.read(COURSE / "notebooks" / LESSON / f"{NAME}.ipynb", as_version=4)
SOFTMAX, SPEED = "roofline_softmax_check", "roofline_softmax_speed"
DUE = datetime(2026, 11, 2, 12)

pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")  # nbgrader's own; the settings ignore it


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("term")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", environment()["PATH"])  # nbgrader calls alembic by name
        with Gradebook(f"sqlite:///{folder / 'gradebook.db'}") as book:
            book.add_assignment(LESSON, duedate=DUE)
            book.add_assignment("00_start", duedate=DUE - timedelta(days=7))
        url = f"sqlite:///{folder / 'gradebook.db'}"
        names = {"student": "ada", "assignment": LESSON, "notebook": NAME, "db_url": url}
        SaveCells().preprocess(nbformat.from_dict(RELEASE), {"nbgrader": names})
    return folder / "gradebook.db"


@pytest.fixture
def term(begun, tmp_path, monkeypatch):
    """The folder of a course in which commands are called."""
    shutil.copy(begun, tmp_path)
    (tmp_path / late.SETTINGS).write_text(
        "c = get_config()\nfrom autograder.classroom.late import LateDays\n"
        "c.AssignLatePenalties.plugin_class = LateDays\nc.LateDays.free_days = 2\nc.LateDays.percent_a_day = 10\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def url(folder):
    return f"sqlite:///{folder / 'gradebook.db'}"


def graded(folder, student, when=None, **points):
    """A hand-in, judged: points of check cells, or whom they wait for."""
    notebook = nbformat.from_dict(RELEASE)
    for cell in filter(is_check, notebook.cells):
        given = points.get(cell.metadata.nbgrader.grade_id, 0.0)
        waits, got = (given, 0.0) if isinstance(given, str) else ("", given)
        cell.outputs = grading.outputs_of({"points": got, "waits": waits, "html": "a report"})
    with Gradebook(url(folder)) as book:
        book.update_or_create_student(student)
        book.update_or_create_submission(LESSON, student, timestamp=when)
    names = {"student": student, "assignment": LESSON, "notebook": NAME, "db_url": url(folder)}
    marks.SavedMarks(verdicts=str(folder)).preprocess(notebook, {"nbgrader": names})
    return notebook, {"nbgrader": names}


# ------------------------------------------------------------------------------------------- the roster


# Columns as the systems write them, names ours. All sources were read on 2026-11-29.
# Canvas: its exporter, with SIS ids; the second row is there where an assignment is posted by hand.
# https://github.com/instructure/canvas-lms/blob/0140a2effa6366ea3b73aeefa4bbc384b943934f/lib/gradebook_exporter.rb
CANVAS = """\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,Quiz 1 (23)
,,,,,Manual Posting
    Points Possible,,,,,10.00
"Müller, Änne",11,9001,amueller,XC 101,8.00
"Student, Test",15,,teststudent,XC 101,
Test Student,16,,bbbc6740f0b946af,,
"""
# Moodle: its exporter, of which the sample has no column of grades. The last column is always there; tables that we
# write leave it out on purpose (lms.Moodle says why).
# https://github.com/moodle/moodle/blob/04975560d10b517e76e53b7936ca13ed7f3218be/grade/export/txt/grade_export_txt.php
MOODLE = """First name,Last name,ID number,Institution,Department,Email address,Last downloaded from this course
Änne,Müller,30069048,,,am@example.org,1567713827
Jan,de Boer,,,,jb@example.org,1567713827
"""
# Gradescope: no page of its own that lists the columns was found. These are of programs that read its download: four
# columns of a lesson in the first, "Total Lateness (H:M:S)" in the second.
# https://github.com/nemogb-dev/nemogb-r/blob/1043dbb028f866175cb8a44a3c6a2b4e89b169f3/R/read-gs.R
# https://github.com/eldridgejm/gradelib/blob/2b83a37212/gradelib/io/gradescope/__init__.py
GRADESCOPE = """First Name,Last Name,SID,Email,Sections
Änne,Müller,30069048,am@example.org,A
"""
OURS = "id;first_name;last_name;email;lms_user_id\r\namueller;Änne;Müller;am@example.org;11\r\n"
AENNE = {"first_name": "Änne", "last_name": "Müller"}
JAN = {"first_name": "Jan", "last_name": "de Boer", "email": "jb@example.org"}


@pytest.mark.parametrize(
    ("text", "layout", "students"),
    [
        (CANVAS, "Canvas", {"amueller": AENNE | {"lms_user_id": "11"}}),
        (MOODLE, "Moodle", {"30069048": AENNE | {"email": "am@example.org"}, "jb@example.org": JAN}),
        (GRADESCOPE, "Gradescope", {"30069048": AENNE | {"email": "am@example.org"}}),
        (OURS, "nbgrader", {"amueller": AENNE | {"email": "am@example.org", "lms_user_id": "11"}}),
    ],
    ids=["canvas", "moodle", "gradescope", "nbgrader"],
)  # fmt: skip
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16"])
def test_a_list_of_students_is_read_whoever_wrote_it_and_in_whatever_encoding(text, layout, students, encoding):
    text = text if encoding == "utf-8" else text.lstrip("\ufeff")
    read = roster.students_of(text.encode(encoding))
    assert (read.layout, read.students) == (layout, students)
    assert bool(read.told) == (encoding != "utf-8")


def test_rows_that_name_no_student_are_told_by_their_lines():
    text = "id,last_name\nada,L\n,Nobody\nada,L\n../up,X\nA.D.A,L\nMu\u0308ller,O'M\na*,X\n"
    may_not = "cannot be an id: one begins with no dot and has none of / * ? [ < > & \" ' \\."
    read = roster.students_of(text.encode())
    assert set(read.students) == {"ada", "A.D.A", "Müller"}
    assert read.told == [
        "Line 3 is left out: it has no id.",
        "Line 4 is left out: ada is there already.",
        f"Line 5 is left out: '../up' {may_not}",
        f"Line 8 is left out: 'a*' {may_not}",
        "'A.D.A' and 'ada' look alike: is that one student?",
    ]


@pytest.mark.parametrize("name", ["<img src=x>", '"+alert(1)+"', "o'neill", "a\\", "a&b", "a>"])
def test_an_id_that_would_act_in_a_page_of_formgrader_is_nobodys(name):
    assert roster.why_not(name, ()) and not roster.why_not("o-neill.ada@example.org_1 (2)", ())


def test_a_name_that_stands_for_several_students_is_nobodys(term, capsys):
    for name in ("ada", "a*", "a[d]a"):
        (term / "submitted" / name / LESSON).mkdir(parents=True)
    course = CourseDirectory(assignment_id=LESSON, root=str(term))
    assert [*cohort.submitted(course, "submitted", Path(LESSON))] == ["ada"]
    assert "'a*' cannot be the name of a student, so it is not graded" in capsys.readouterr().err


@pytest.mark.parametrize(("data", "says"), [(b"", "it is empty"), (b"who,what\na,b\n", "no column says who")])
def test_a_file_that_is_no_roster_is_refused_with_the_columns_that_are_asked_for(term, data, says, capsys):
    (term / "list.csv").write_bytes(data)
    assert roster.main(argparse.Namespace(file=Path("list.csv"))) == 2
    assert says in capsys.readouterr().out


def test_the_roster_goes_into_the_gradebook_and_what_was_there_stays(term, capsys):
    (term / "list.csv").write_text(OURS)
    for said in ("1 new, 0 changed", "0 new, 0 changed"):
        assert roster.main(argparse.Namespace(file=Path("list.csv"))) == 0
        assert said in capsys.readouterr().out
    (term / "list.csv").write_text("id,last_name\nother,O\n")
    roster.main(argparse.Namespace(file=Path("list.csv")))
    assert "Not in the file, and kept: amueller." in capsys.readouterr().out
    with Gradebook(url(term)) as book:
        one = book.find_student("amueller")
        assert (one.first_name, one.last_name, one.lms_user_id) == ("Änne", "Müller", "11")


def test_folders_of_nobody_on_the_roster_are_told_with_the_name_that_is_near(term):
    with Gradebook(url(term)) as book:
        book.add_student("graded before")
        assert list(roster.strangers(["anybody"], book)) == [], "no roster was given"
        book.add_student("Müller Änne", last_name="Müller")
        said = list(roster.strangers(["mueller", "Mu\u0308ller A\u0308nne", "Müller Änne", "muller_anne"], book))
    assert len(said) == 3 and said[1].startswith("'mueller' is not on the roster") and "Is it" not in said[1]
    assert "Is it 'Müller Änne'? Then rename the folder." in said[0] and "\\u0308" in said[0]
    assert "Is it 'Müller Änne'?" in said[2]


@pytest.mark.parametrize("field", [name for name in roster.FIELDS if name != "id"])
def test_who_is_known_by_one_field_alone_is_no_stranger(term, field):
    with Gradebook(url(term)) as book:
        roster.entered(book, roster.students_of(f"id,{field}\nada,E\n".encode()))
        (said,) = roster.strangers(["ada", "nobody"], book)
    assert said.startswith("'nobody' is not on the roster")


def test_who_was_graded_under_another_name_is_told_when_the_folder_is_gone(term):
    graded(term, "Ada L", DUE)
    with Gradebook(url(term)) as book:
        book.add_student("never handed in")
        assert list(roster.left_over([], book)) == [], "no roster was given"
        book.add_student("ada", last_name="Lovelace")
        assert list(roster.left_over(["Ada L"], book)) == []
        (said,) = roster.left_over(["ada"], book)
    assert said.startswith(
        "In the gradebook without a folder, and not on the roster: 'Ada L'. nbgrader db student remove"
    )


def test_folders_that_an_lms_names_after_people_are_told_with_who_that_is_on_the_roster(term):
    with Gradebook(url(term)) as book:
        for number, first in enumerate(("Ada", "Ada", "Änne")):
            book.add_student(f"s{number}", first_name=first, last_name="Lovelace", email=f"mail.{number}@example.org")
        said = list(roster.strangers(["Ada Lovelace", "lovelaceanne", "Mail.1", "lovelace"], book))
    meant = [line.rpartition("of that name.")[2] for line in said]
    ends, several = "? Then rename the folder.", " 's0' and 's1' have that name: find out whose it is, and"
    assert meant == [f"{several} rename the folder to that id.", f" Is it 's1'{ends}", "", f" Is it 's2'{ends}"]
    with Gradebook(url(term)) as book:
        (said,) = roster.strangers(["Ada Lovelace_10006"], book)
    assert "'Ada Lovelace_10006' is not on the roster" in said and several in said


def test_a_worksheet_of_moodle_that_has_no_ids_is_about_those_who_are_there(term, capsys):
    (term / "list.csv").write_text(MOODLE)
    (term / "worksheet.csv").write_text(
        "Identifier,Full name,Email address\nParticipant 77,Änne Müller,am@example.org\n"
    )
    for name, said in (("list.csv", "2 new, 0 changed"), ("worksheet.csv", "0 new, 1 changed")):
        assert roster.main(argparse.Namespace(file=Path(name))) == 0
        assert said in capsys.readouterr().out
    with Gradebook(url(term)) as book:
        assert book.find_student("30069048").lms_user_id == "Participant 77"
        assert {*roster.by_numbers(book)} == {"77"}


@pytest.fixture(scope="module")
def settings():
    """The course's own, which set an environment for the commands that load them."""
    mask = os.umask(0o077)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(COURSE))
        config = PyFileConfigLoader("nbgrader_config.py", path=str(COURSE)).load_config()
    os.umask(mask)
    return config


@pytest.mark.parametrize(
    ("path", "student", "number", "file"),
    [
        ("submissions/lovelaceada_12345_67890_roofline.ipynb", "lovelaceada", "12345", "roofline"),
        ("submissions/lovelaceada_LATE_12345_67890_roofline-1.ipynb", "lovelaceada", "12345", "roofline-1"),
        ("submissions/lovelaceada_12345_67890_all.zip", "lovelaceada", "12345", "all"),
        ("x/lovelaceada_12345_67890_7_assignsubmission_x.ipynb", "lovelaceada", "12345", "7_assignsubmission_x"),
        ("CS-1/Ada Lovelace_12345_assignsubmission_file_/roofline.ipynb", "Ada Lovelace", "12345", "roofline"),
        ("CS_1/Ada Lovelace_12_assignsubmission_file_/my_roofline (1).ipynb", "Ada Lovelace", "12", "my_roofline (1)"),
        ("CS_1/Änne Müller-Lü_1_assignsubmission_file_roofline.ipynb", "Änne Müller-Lü", "1", "roofline"),
        ("CS/Ada_12_34_assignsubmission_file_/roofline.ipynb", "Ada_12", "34", "roofline"),  # "Ada_12" in Moodle
        ("CS/Ada_1_assignsubmission_file_B_2_assignsubmission_file_x.ipynb", "Ada", "1", "B_2_assignsubmission_file_x"),
        ("CS/Bob_7_8_ Adams_99_assignsubmission_file_/roofline.ipynb", "Bob_7_8_ Adams", "99", "roofline"),
        ("CS/B_7_assignsubmission_file__99_assignsubmission_file_/x.ipynb", "B_7_assignsubmission_file_", "99", "x"),
        ("CS/Ada_1_assignsubmission_file_/draft_roofline.ipynb", "Ada", "1", "draft_roofline"),
        ("CS/Ada_1_assignsubmission_file_/__MACOSX/._roofline.ipynb", "Ada", "1", "._roofline"),
        ("lovelaceada_12345_67890_roofline.ipynb", "lovelaceada", "12345", "roofline"),  # no archive
        ("Bob_2_assignsubmission_file_/Ada_1_assignsubmission_file_/roofline.ipynb", "Bob", "2", "roofline"),
        ("assignment_7_export/submission_12345/roofline.ipynb", "submission", "12345", "roofline"),
        ("CS/assignment_7_export/submission_12/submission_3/my_x.ipynb", "submission", "12", "my_x"),
        ("CS/Ada_1_assignsubmission_file_/submission_3/x.ipynb", "Ada", "1", "x"),
        ("ada_roofline.ipynb", "ada", None, "roofline"),
    ],
)  # fmt: skip
def test_names_in_archives_of_canvas_moodle_and_gradescope_tell_the_student_and_the_number(
    path, student, number, file, settings
):
    found = FileNameCollectorPlugin(config=settings).collect(path)
    assert (found["student_id"], found["number"], found["file_id"]) == (student, number, file)


def test_people_of_one_name_have_a_folder_each(term):
    """s0 and s1 are both called Ada L; the roster knows the number of s1, and one who was not on it yet came later."""
    with Gradebook(url(term)) as book:
        for number, (first, last) in enumerate([("Ada", "L"), ("Ada", "L"), ("Änne", "M"), ("Bo", "N"), ("Cleo", "O")]):
            book.add_student(f"s{number}", first_name=first, last_name=last)
        book.find_student("s1").lms_user_id = "Participant 11"
        book.find_student("s2").lms_user_id = "7"  # of another lesson: Moodle has one a lesson
        book.find_student("s4").lms_user_id = "44"
        named = [("Ada L", "10"), ("Ada L", "11"), ("Änne M", "12"), ("Bo N", "13"), ("Bo N", "14")]
        named += [("of no roster", "15"), ("of no roster", "16"), ("of no roster but one", "17"), ("Bo N", "")]
        found, told = roster.folders([*named, ("C. O.", "44")], book)
    assert [found[one] for one in named] == [
        "Ada L_10", "s1", "s2", "Bo N_13", "Bo N_14", "of no roster_15", "of no roster_16",
        "of no roster but one", "Bo N"
    ]  # fmt: skip
    assert found["C. O.", "44"] == "s4", "the number says who it is, whatever the name"
    assert [line.partition("collected as ")[2].partition(".")[0] for line in told] == [
        "'Ada L_10'", "'Bo N_13'", "'Bo N_14'", "'of no roster_15'", "'of no roster_16'"
    ]  # fmt: skip
    assert "'s0' and 's1' have that name" in told[0] and "'id,lms_user_id' and 'ID,10'" in told[0]


def zip_collected(term) -> subprocess.CompletedProcess:
    shutil.copy(COURSE / late.SETTINGS, term)
    line = [sys.executable, "-m", "nbgrader", "zip_collect", LESSON]
    surroundings = environment() | {"PYTHONPATH": str(COURSE)}
    return subprocess.run(line, cwd=term, env=surroundings, capture_output=True, text=True)


def test_an_archive_in_which_one_students_zip_is_none_is_taken_apart_for_everybody(term):
    folder = term / "downloaded" / LESSON / "archive"
    folder.mkdir(parents=True)
    (folder / "cut short.zip").write_bytes(b"PK")
    (folder / "cleo_LATE_3_4_roofline.ipynb").write_text("in no archive")
    with zipfile.ZipFile(folder / "CS.zip", "w") as archive:
        for name in ("roofline.ipynb", "my_roofline.ipynb", "notes.txt"):
            archive.writestr(f"Ada L_1_assignsubmission_file_/{name}", name)
        for number in (7, 8):
            archive.writestr(f"Eve M_{number}_assignsubmission_file_/roofline.ipynb", f"of number {number}")
        archive.writestr("Bob_2_assignsubmission_file_/all.zip", "no zip")
        archive.writestr("Bob_2_assignsubmission_file_/extracted/Ada L_1_x/notes.ipynb", "Bob's, whatever he calls it")
        archive.writestr(".._4_assignsubmission_file_/roofline.ipynb", "of somebody who is called that")
    with Gradebook(url(term)) as book:
        book.add_student("ada", first_name="Ada", last_name="L")
        for number in (7, 9):
            book.add_student(f"eve{number}", first_name="Eve", last_name="M", lms_user_id=f"Participant {number}")
    done = zip_collected(term)
    assert done.returncode == 1 and "cut short.zip cannot be taken apart" in done.stderr, done.stderr
    found = sorted(str(path.relative_to(term / "submitted")) for path in (term / "submitted").rglob("*.*"))
    ada = [f"ada/{LESSON}/{name}.ipynb" for name in ("my_roofline", "roofline")]
    bob = [f"Bob/{LESSON}/{name}" for name in ("all.zip", "notes.ipynb")]
    eve = [f"{name}/{LESSON}/roofline.ipynb" for name in ("Eve M_8", "eve7")]
    assert [(term / "submitted" / one).read_text() for one in eve] == ["of number 8", "of number 7"]
    assert "nobody on the roster has the number 8: collected as 'Eve M_8'. 'eve7' and 'eve9' have that" in done.stderr
    assert f"Canvas marks cleo late, and not how late: write the time into submitted/cleo/{LESSON}/time" in done.stderr
    bob, ada = [*bob, eve[0]], [*ada, f"cleo/{LESSON}/roofline.ipynb", eve[1]]
    assert found == [*bob, *ada] and not (term / LESSON).exists()


def archive(term, **files: dict[str, str]) -> None:
    """Zips in the folder where `zip_collect` looks."""
    folder = term / "downloaded" / LESSON / "archive"
    folder.mkdir(parents=True, exist_ok=True)
    for name, held in files.items():
        with zipfile.ZipFile(folder / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as packed:
            for path, text in held.items():
                packed.writestr(path, text)


def texts(term) -> dict[str, str]:
    """Student/file -> what was collected."""
    files = (path for path in (term / "submitted").rglob("*") if path.is_file() and path.suffix != ".zip")
    return {f"{path.parents[1].name}/{path.name}": path.read_text() for path in files}


def test_a_students_zip_beside_other_hand_ins_is_not_opened(term):
    with Gradebook(url(term)) as book:
        book.add_student("dan")
    names = {"bob_7_8_roofline.ipynb": "by another, in bob's name"}
    archive(term, alice_1_2_all=names, dan_all=names, CS_101={"cleo_3_4_roofline.ipynb": "cleo's"})
    done = zip_collected(term)
    assert done.returncode == 0 and "not opened: 'alice_1_2_all.zip', 'dan_all.zip'" in done.stderr, done.stderr
    found = sorted(str(path.relative_to(term / "submitted")) for path in (term / "submitted").rglob("*.*"))
    assert found == [f"alice/{LESSON}/all.zip", f"cleo/{LESSON}/roofline.ipynb", f"dan/{LESSON}/all.zip"]


def test_the_file_of_the_lessons_name_in_the_fewest_folders_keeps_it_and_no_name_ends_the_class(term):
    name, of = "x" * 249 + ".ipynb", "{}_assignsubmission_file_/{}".format
    archive(
        term,
        CS={
            of("Ada_1", "backup/roofline.ipynb"): "earlier",
            of("Ada_1", "__MACOSX/._roofline.ipynb"): "of a Mac",
            of("Ada_1", "roofline.ipynb"): "ada's",
            of("Ada_1", "roofline (2).ipynb"): "by hand",
            of("Ada_1", "draft_roofline.ipynb"): "a draft",
            of("Ada_1", "roofline.final.ipynb"): "final",
            of("Bob_2", name): "bob 1",
            of("Bob_2", f"a/{name}"): "bob 2",
            of("Cleo_3", "\N{CJK UNIFIED IDEOGRAPH-4F5C}" * 100 + ".ipynb"): "cleo's",
            of("Dan_4", "._roofline.ipynb"): "nothing else",
            of("Eve_5", "\x1b[31m.ipynb"): "eve's",
        },
    )
    done = zip_collected(term)
    assert done.returncode == 0 and "\x1b[31m" not in done.stderr, done.stderr
    found = texts(term)
    ada = {"roofline": "ada's", "roofline (2)": "by hand", "roofline (3)": "earlier", "draft_roofline": "a draft"}
    ada["roofline.final"] = "final"
    assert {path: text for path, text in found.items() if path.startswith("Ada")} == {
        f"Ada/{name}.ipynb": text for name, text in ada.items()
    }
    assert (
        "roofline.ipynb' was taken for 'roofline.ipynb', and 'CS/Ada_1_assignsubmission_file_/backup/roo" in done.stderr
    )
    others = sorted(text for path, text in found.items() if not path.startswith("Ada"))
    assert others == ["bob 1", "bob 2", "cleo's", "eve's", "nothing else"]
    assert all(len(os.fsencode(path.partition("/")[2])) < 220 for path in found)


def test_nobody_is_left_out_for_an_apostrophe_and_who_can_have_no_folder_is_named(term):
    of = "{}_assignsubmission_file_/roofline.ipynb".format
    people = ("Una O'Brien_1", "Jeanne d'Arc_2", ".hidden_3")
    archive(term, CS={of(name): name for name in people})
    with Gradebook(url(term)) as book:
        book.add_student("una", first_name="Una", last_name="O'Brien")
    done = zip_collected(term)
    assert done.returncode == 1 and "1 file is missing" in done.stderr, done.stderr
    assert f"'CS/{of(people[2])}' is not collected: '.hidden' cannot be an id" in done.stderr
    assert texts(term) == {"una/roofline.ipynb": people[0], "Jeanne d_Arc/roofline.ipynb": people[1]}


def test_what_cannot_be_taken_out_of_an_archive_is_named_and_the_rest_is_collected(term):
    of = "{}_assignsubmission_file_/roofline.ipynb".format
    archive(term, CS={of("Ada_1"): "ada's", of("Bob_2"): "spoilt", of("x/../../Cleo_3"): "", of("Dan_4"): "dan's"})
    path = term / "downloaded" / LESSON / "archive" / "CS.zip"
    with zipfile.ZipFile(path) as packed:
        at = packed.getinfo(of("Bob_2")).header_offset + 30 + len(of("Bob_2"))
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
    done = zip_collected(term)
    assert done.returncode == 1 and "2 files are missing" in done.stderr, done.stderr
    assert texts(term) == {"Ada/roofline.ipynb": "ada's", "Dan/roofline.ipynb": "dan's"}
    for name in ("Bob_2", "x/../../Cleo_3"):
        assert f"{of(name)!a} in {path} cannot be taken apart" in done.stderr


def test_an_archive_that_would_fill_the_disk_is_not_unpacked_and_a_large_file_is_left_out(term, monkeypatch):
    archive(term, CS={"a.ipynb": "x" * 300, "b.ipynb": "x" * 2000})
    errors, names = [], SimpleNamespace(is_hand_in=lambda _: False)
    app = SimpleNamespace(coursedir=CourseDirectory(root=str(term), max_file_size=1), collector_plugin_inst=names)
    log = SimpleNamespace(info=print, error=lambda text, *words: errors.append(text % words))
    extractor, folder = collecting.LmsArchive(), str(term / "downloaded" / LESSON / "archive")
    monkeypatch.setattr(collecting.LmsArchive, "log", log)
    monkeypatch.setattr(collecting.LmsArchive, "parent", app)
    extractor.extract(folder, str(term / "extracted"))
    assert [path.name for path in (term / "extracted").rglob("*.ipynb")] == ["a.ipynb"]
    monkeypatch.setattr(collecting, "MOST", 2200)
    extractor.extract(folder, str(term / "again"))
    assert not list((term / "again").rglob("*.ipynb")) and extractor.missing == len(errors) == 2
    assert "'b.ipynb' in" in errors[0] and "it unpacks to 0 GB, and the limit is 0" in errors[1]


METADATA = """---
submission_101:
  :submitters:
  - :name: Ada L
    :sid: '007'
    :email: ada@uni.example
  :created_at: 2026-11-02 22:45:00.000000000 Z
  :history: []
submission_102:
  :submitters:
  - :name: Bo N
    :sid: 0123
    :email: Bo@uni.example
  :created_at: !ruby/object:Time soon
submission_103:
  :submitters:
  - :name: Ada L
    :sid:
    :email: other@uni.example
  - :name: Cleo O
    :sid: '9'
submission_104:
  :submitters:
  - :name: Ada L
    :sid: ''
submission_105: nobody
submission_107:
  :submitters:
  - :name: Fay P
    :sid: fay
submission_108:
  :submitters:
  - :name: Mallory
    :sid: fay
"""


def test_of_an_archive_of_gradescope_its_metadata_tell_who_handed_in_and_when(term):
    folder = term / "downloaded" / LESSON / "archive"
    folder.mkdir(parents=True)
    theirs = "submission_106:\n  :submitters:\n  - :sid: '9'\n"  # of which Gradescope says nothing
    with zipfile.ZipFile(folder / "assignment_7_export.zip", "w") as archive:
        archive.writestr("assignment_7_export/submission_metadata.yml", METADATA)
        for number in range(101, 109):
            archive.writestr(f"assignment_7_export/submission_{number}/roofline.ipynb", f"of {number}")
        archive.writestr("assignment_7_export/submission_105/submission_metadata.yml", theirs)
    with Gradebook(url(term)) as book:
        book.add_student("007", last_name="L")
        book.add_student("bo", last_name="N", email="bo@uni.example")
        book.add_student("9", last_name="O", lms_user_id="10")
    done = zip_collected(term)
    assert done.returncode == 0, done.stderr
    found = {path.parts[-3]: path.read_text() for path in (term / "submitted").rglob("roofline.ipynb")}
    numbers = {"007": 101, "bo": 102, "9": 103, **{f"submission_{number}": number for number in range(104, 109)}}
    assert found == {name: f"of {number}" for name, number in numbers.items()}
    assert "submission_107 is of 'fay' by what Gradescope says, and so is another" in done.stderr
    assert "submission_103 is of several people: copy submitted/9 for the others" in done.stderr
    times = {path.parts[-3]: path.read_text() for path in (term / "submitted").rglob("timestamp.txt")}
    assert times == {"007": "2026-11-02 22:45:00"}


def test_no_language_but_python_is_coloured(settings):
    """A lexer of another one takes a minute for 300 zeros, and twice that for each one more."""
    text = "```mcfunction\n00g\n```\n\n```python\n00\n```\n\n```mermaid\n00\n```"
    cells = [new_markdown_cell(text), new_code_cell("%%perl\n<<00")]
    page, _ = HTMLExporter(config=settings).from_notebook_node(new_notebook(cells=cells))
    assert page.count("<pre><code>") == 2 and 'class="mermaid"' not in page
    assert '<span class="mi">00' in page and "hl-python3" in page and "hl-ipython3" not in page


# ------------------------------------------------------------------------------------------- late days


def test_free_days_go_to_the_first_lessons_and_what_is_beyond_is_charged():
    assert late.charged([("a", 1), ("b", 0), ("c", 3), ("d", 1)], free=2) == {"a": 0, "b": 0, "c": 2, "d": 1}
    assert late.charged([("a", 1)], free=0) == {"a": 1}
    rule = late.LateDays(percent_a_day=40.0)
    assert [rule.cost(10.0, days) for days in (0, 1, 3)] == [None, 4.0, 10.0]


def test_a_late_hand_in_costs_what_the_rule_says_and_a_mark_or_an_extension_given_later_counts(term, capsys):
    args = argparse.Namespace
    nb, resources = graded(term, "ada", DUE + timedelta(days=2, hours=1), **{SOFTMAX: 6.0})
    config = late.course()[0]
    AssignLatePenalties(config=config).preprocess(nb, resources)
    assert penalty(term) == 0.6, "three days begun, two of them free"
    with Gradebook(url(term)) as book:
        book.find_grade(SOFTMAX, NAME, LESSON, "ada").manual_score = 5.0
        book.db.commit()
    assert late.main(args(action=None)) == 0
    assert capsys.readouterr().out == f"ada, {LESSON}: 3 days late, 2 of them free, penalty 0.5 of 5 points\n"
    assert penalty(term) == 0.5
    assert late.main(args(action="extend", student="ada", lesson=LESSON, days=3)) == 0
    assert capsys.readouterr().out == f"ada, {LESSON}: extension of 3 days\n"
    assert not penalty(term)
    assert late.main(args(action="extend", student="ada", lesson=LESSON, days=0)) == 0
    assert late.main(args(action="due", lesson=LESSON, date="2026-11-05 13:00 +0100")) == 0
    said = capsys.readouterr().out
    assert f"{LESSON} is due 2026-11-05 12:00 UTC.\n" in said and "Nobody was late" in said
    with Gradebook(url(term)) as book:
        assert book.find_assignment(LESSON).duedate == datetime(2026, 11, 5, 12)


def test_hand_ins_without_a_time_are_named_where_there_is_a_due_date(term, capsys):
    for student, when in (("ada", DUE + timedelta(hours=1)), ("bob", None), ("cleo", None)):
        graded(term, student, when)
    assert late.main(argparse.Namespace(action=None)) == 0
    said = capsys.readouterr().out
    assert "ada, 01_roofline: 1 day late," in said
    assert said.endswith("01_roofline: 2 hand-ins without a time (timestamp.txt), on time therefore: bob, cleo\n")
    late.main(argparse.Namespace(action="due", lesson=LESSON, date="none"))
    assert "without a time" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-12-01 23:59", datetime(2026, 12, 1, 23, 59)),
        ("2026-12-01 23:59 UTC", datetime(2026, 12, 1, 23, 59)),
        ("2026-12-01 23:59 -08:00", datetime(2026, 12, 2, 7, 59)),
        ("2026-12-01 23:59 +0100", datetime(2026, 12, 1, 22, 59)),
    ],
)
def test_a_due_date_is_read_with_its_zone(text, utc):
    assert late.in_utc(text) == utc


def penalty(folder, student="ada"):
    with Gradebook(url(folder)) as book:
        return book.find_submission_notebook(NAME, LESSON, student).late_submission_penalty


def test_an_extension_before_the_hand_in_counts_and_is_no_hand_in(term):
    with Gradebook(url(term)) as book:
        book.add_student("bob")
        late.extend(book, "bob", LESSON, 5)
        book.update_or_create_student("bob", first_name="=1+1")
    (row,) = table(term, export.Grades, "grades.csv", csv.DictReader, lesson=LESSON)
    assert (row["student_id"], row["first_name"], row["score"]) == ("bob", "'=1+1", "")
    graded(term, "bob", DUE + timedelta(days=4), **{SOFTMAX: 6.0})
    late.main(argparse.Namespace(action=None))
    assert not penalty(term, "bob")


def test_collected_before_the_due_date_is_the_last_hand_in_on_time_with_the_extension(term):
    handed_in = {"ada": [-1, 2, 5], "a": [-1, 2], "bob": [-2, -1, 2], "cleo": [4, 5], "dan": [2]}  # days after DUE
    for student, days in handed_in.items():
        for day in days:
            when = f"{DUE + timedelta(days=day):%Y-%m-%d %H:%M:%S.%f} UTC"
            (term / f"exchange/course/inbound/{student}+{LESSON}+{when}+00").mkdir(parents=True)
    with Gradebook(url(term)) as book:
        for student in handed_in:
            book.add_student(student)
        for student, extra in {"ada": 3, "a": 3, "cleo": 3}.items():
            late.extend(book, student, LESSON, extra)

    def collected(**settings):
        config = Config({"Exchange": {"root": str(term / "exchange")}, "ExchangeCollect": settings})
        course = CourseDirectory(course_id="course", db_url=url(term), assignment_id=LESSON, root=str(term))
        collect = collecting.Collect(coursedir=course, config=config)
        collect.init_src()
        return {one["username"]: (one["timestamp"] - DUE).days for one in collect.src_records}

    assert collected(before_duedate=True) == {"ada": 2, "a": 2, "bob": -1, "cleo": 5, "dan": 2}
    assert collected() == {"ada": 5, "a": 2, "bob": 2, "cleo": 5, "dan": 2}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"action": "extend", "student": "nobody", "lesson": LESSON, "days": 1}, "No such student: nobody"),
        ({"action": "due", "lesson": "99_none", "date": "none"}, "No such assignment: 99_none"),
        ({"action": "due", "lesson": LESSON, "date": "soon"}, "'soon' is no date"),
        ({"action": "due", "lesson": LESSON, "date": "05.12.2026 23:59"}, "Say it as 2026-12-01 23:59 +0100"),
        ({"action": "due", "lesson": LESSON, "date": "2026-12-01"}, "'2026-12-01' is no date with a time"),
        ({"action": "due", "lesson": LESSON, "date": "2026-12-01 23:59 CET"}, "is no date"),
        *(
            ({"action": "extend", "student": "ada", "lesson": LESSON, "days": days}, f"An extension of {days:g} days")
            for days in (float("nan"), 1e12, -1.0)
        ),
    ],
)
def test_who_or_what_is_not_in_the_gradebook_is_told(term, capsys, words, says):
    assert late.main(argparse.Namespace(**words)) == 1
    assert says in capsys.readouterr().out


def test_another_plugin_of_a_site_is_left_alone(term):
    assert late.rule_of(Config()) is None
    graded(term, "ada", DUE + timedelta(days=9), **{SOFTMAX: 6.0})
    (term / late.SETTINGS).write_text("c = get_config()\n")
    assert late.main(argparse.Namespace(action=None)) == 0
    assert not penalty(term)


# ------------------------------------------------------------------------------------------- tables of marks


def table(folder, kind, name, reader=csv.reader, lesson=None):
    config = late.course()[0]
    sheet = kind(config=config, verdicts=str(folder), to=str(folder / name), assignment=[lesson] if lesson else [])
    with Gradebook(url(folder)) as book:
        sheet.export(book)
    with (folder / name).open(newline="", encoding="utf-8") as file:
        return list(reader(file))


@pytest.fixture
def marked(term):
    """One whose softmax is right and fast, one whose speed waits, one whose answer waits, one who did nothing."""
    graded(term, "fast", DUE, **{SOFTMAX: 6.0, SPEED: 3.0})
    graded(term, "late", DUE + timedelta(days=3), **{SOFTMAX: 6.0, SPEED: "a GPU"})
    graded(term, "held", DUE, **{SOFTMAX: "a person", SPEED: 3.0})
    with Gradebook(url(term)) as book:
        book.update_or_create_student("fast", first_name="Änne", last_name="Müller", lms_user_id="11", email="a@b.org")
        book.add_student("none")
    return term


def test_canvas_gets_its_five_columns_the_row_of_points_and_one_column_more_for_speed(marked):
    header, possible, *rows = table(marked, lms.Canvas, "canvas.csv", lesson=LESSON)
    assert header == [*CANVAS.lstrip("\ufeff").split(",Quiz")[0].split(","), LESSON, f"{LESSON} speed"]
    assert possible[:5] == ["    Points Possible", "", "", "", ""]
    speed = sum(c.metadata.nbgrader.points for c in RELEASE.cells if "check_speed(" in c.source and is_check(c))
    whole = sum(c.metadata.get("nbgrader", {}).get("points", 0) for c in RELEASE.cells)
    assert list(map(float, possible[5:])) == [whole - speed, speed]
    got = {row[3]: row for row in rows}
    assert got["fast"] == ["Müller, Änne", "11", "", "fast", "", "6", "3"]
    assert got["late"][5:] == ["5.4", ""], "one day beyond the free ones; speed waits"
    assert got["held"][5:] == ["", "3"] and got["none"][5:] == ["", ""]


def test_cells_that_are_empty_because_points_wait_are_counted(marked, monkeypatch):
    said = []
    monkeypatch.setattr(lms.Canvas, "log", SimpleNamespace(info=print, warning=lambda _, *told: said.append(told)))
    table(marked, lms.Canvas, "canvas.csv", lesson=LESSON)
    assert said == [(LESSON, "1 cell is"), (f"{LESSON} speed", "1 cell is")]


def test_moodle_gets_the_columns_of_its_own_export(marked):
    header, *rows = table(marked, lms.Moodle, "moodle.csv", lesson=LESSON)
    known = MOODLE.split(",Last downloaded")[0].split(",")
    assert header == [*known, f"Assignment: {LESSON} (Real)", f"Assignment: {LESSON} speed (Real)"]
    got = {row[2]: row for row in rows}
    assert got["fast"] == ["Änne", "Müller", "fast", "", "", "a@b.org", "6", "3"]
    assert got["none"] == ["", "", "none", "", "", "", "", ""]


def test_gradescope_gets_four_columns_a_lesson_and_the_lateness(marked):
    header, *rows = table(marked, lms.Gradescope, "gradescope.csv", lesson=LESSON)
    asked = [*GRADESCOPE.split("\n")[0].split(",")]
    for title in (LESSON, f"{LESSON} speed"):
        asked += [title, f"{title} - Max Points", f"{title} - Submission Time", f"{title} - Lateness (H:M:S)"]
    assert header == [*asked, "Total Lateness (H:M:S)"]
    got = {row[2]: row for row in rows}
    assert got["late"][5] == "5.4" and got["late"][7:9] == ["2026-11-05 12:00:00 +0000", "72:00:00"]
    assert got["late"][-1] == "72:00:00" and got["none"][-1] == "00:00:00"
    assert got["none"][7:9] == ["", ""]


# ------------------------------------------------------------------------------------------- their way in
# How each system reads a table that is uploaded: Canvas by the rules of its GradebookImporter, Moodle by the columns
# that one maps in its form. Gradescope takes no table of marks back; tools read its own download, four columns a lesson
# from the sixth on. Read on 2026-11-29:
# https://github.com/instructure/canvas-lms/blob/00b222d77ee43d046e6aee0347c4ed5b27e1741f/lib/gradebook_importer.rb
# https://docs.moodle.org/311/en/Grade_import
# https://github.com/moodle/moodle/blob/0289d8c7665458f8ffc47e34527598e15523f104/grade/import/csv/classes/load_data.php


def canvas_reads(rows: list[list[str]]) -> tuple[list[str], list[str], dict[str, list[str]]]:
    """Titles, points possible and the marks by Canvas's ID, or its error."""
    header, *rows = rows
    assert len(header) > 3 and "Student" in header[0] and "ID" in header[1], "no header"
    columns = 5 if "SIS User ID" in header[2] and "SIS Login ID" in header[3] else 3
    assert "Section" in header[columns - 1], "no header"
    while not any(rows[0][:columns]):  # the posting policy
        rows = rows[1:]
    assert "Points Possible" in rows[0][0], "no points possible"
    marks = {row[1] or row[2] or row[3]: row[columns:] for row in rows[1:]}
    assert all(marks), "a student without any ID"
    return header[columns:], rows[0][columns:], marks


def moodle_reads(rows: list[list[str]], by: str) -> dict[str, dict[str, str]]:
    """Item -> marks, students found by the column that was mapped; what is empty here, Moodle takes away."""
    header, *rows = rows
    assert header.count(by) == 1
    who, items = header.index(by), [n for n, title in enumerate(header) if title.endswith("(Real)")]
    return {header[n]: {row[who]: row[n] for row in rows if row[n]} for n in items}


def gradescope_reads(rows: list[list[str]]) -> dict[str, list[str]]:
    header, *_ = rows
    assert header[2:4] == ["SID", "Email"] and header[-1] == "Total Lateness (H:M:S)" and len(header) % 4 == 2
    lessons = [header[at : at + 4] for at in range(5, len(header) - 1, 4)]
    for title, *others in lessons:
        assert others == [f"{title} - Max Points", f"{title} - Submission Time", f"{title} - Lateness (H:M:S)"]
    return {one[0]: one for one in lessons}


def test_each_system_reads_the_table_that_is_written_for_it(marked):
    titles = [LESSON, f"{LESSON} speed"]
    names, possible, marks = canvas_reads(table(marked, lms.Canvas, "canvas.csv", lesson=LESSON))
    assert names == titles and all(float(one) > 0 for one in possible) and marks["11"] == ["6", "3"]
    assert {*marks} == {"11", "late", "held", "none"}
    read = moodle_reads(table(marked, lms.Moodle, "moodle.csv", lesson=LESSON), "ID number")
    assert read[f"Assignment: {LESSON} speed (Real)"] == {"fast": "3", "held": "3"}
    assert [*gradescope_reads(table(marked, lms.Gradescope, "gradescope.csv", lesson=LESSON))] == titles


def test_the_readers_take_what_these_systems_write_and_refuse_what_they_refuse():
    sample = [*csv.reader(CANVAS.lstrip("\ufeff").splitlines())]
    assert canvas_reads(sample)[0] == ["Quiz 1 (23)"] and canvas_reads(sample)[2]["11"] == ["8.00"]
    for spoilt in (sample[0][:4] + sample[0][5:], ["Name", *sample[0][1:]]):
        with pytest.raises(AssertionError, match="no header"):
            canvas_reads([spoilt, *sample[1:]])
    with pytest.raises(AssertionError, match="points possible"):
        canvas_reads([sample[0], sample[3]])


@pytest.mark.parametrize("kind", [lms.Canvas, lms.Moodle, lms.Gradescope])
def test_a_name_is_no_formula_in_any_table(kind, marked):
    with Gradebook(url(marked)) as book:
        book.update_or_create_student("fast", first_name="=1+1", last_name="@x", email="+y;=1+1")
    cells = [cell for row in table(marked, kind, "x.csv", lesson=LESSON) for cell in row]
    assert any("@x" in cell for cell in cells) and not any(cell.startswith(("=", "@", "+")) for cell in cells)
    assert ";=" not in (marked / "x.csv").read_text()


@pytest.mark.parametrize("kind", [lms.Canvas, lms.Moodle, lms.Gradescope])
def test_a_table_that_went_out_comes_back_as_the_same_roster(marked, kind):
    table(marked, kind, "out.csv", lesson=LESSON)
    read = roster.students_of((marked / "out.csv").read_bytes())
    assert read.layout == kind.__name__ and {*read.students} == {"fast", "late", "held", "none"}
    assert read.students["fast"]["last_name"] == "Müller" and not read.told


def test_both_columns_together_are_the_score():
    row = {"score": 9.0, "speed_score": 3.0, "waits": ""}
    assert lms.shared(row) == ("6", "3")
    assert lms.shared(row | {"score": 2.0}) == ("0", "2"), "the penalty took what was earned otherwise"
    assert lms.shared(row | {"waits": "roofline.graph (a GPU)"}) == ("", "3")
