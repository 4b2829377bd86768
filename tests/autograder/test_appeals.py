"""What an appeal needs: why a mark is what it is, the same judged again, an exercise graded anew, and closed seeds."""

import argparse
import datetime
import functools
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from html import escape
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook

from autograder import exercise
from autograder.bank import find
from autograder.call.in_process import examine
from autograder.classroom import appeals, cohort, grading, handed_in, marks, regrade, seeds, taken, trying, verdicts
from autograder.classroom.taken import Item
from autograder.classroom.verdicts import Asked, Judging, is_check
from course_lib.places import RELEASES, environment

COURSE = Path(__file__).resolve().parents[2]
LESSON, NAME = "01_roofline", "roofline"
ADA = Item("ada", LESSON, NAME)
SOFTMAX, MATMUL = "roofline.softmax", "roofline.matmul"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Of verdicts, in which one submission was taken in."""
    for module in (taken, appeals, regrade, seeds):
        monkeypatch.setattr(module, "VERDICTS", tmp_path / "verdicts")
    for module in (taken, cohort):
        monkeypatch.setattr(module, "HOME", tmp_path)
    handed = tmp_path / "submitted/ada" / LESSON
    handed.mkdir(parents=True)
    shutil.copy(RELEASES / LESSON / f"{NAME}.ipynb", handed)
    handed_in.take(handed, RELEASES / LESSON, tmp_path / taken.TAKEN / "ada" / LESSON)
    return tmp_path / "verdicts"


@pytest.fixture
def points(monkeypatch) -> dict[str, float]:
    """Exercise -> the points that every judging gives."""
    given = dict.fromkeys((SOFTMAX, MATMUL), 2.0)

    def made(judging, asked):
        verdict = {"exercise": asked.name, "tier": "interpreter", "tier_of_file": "interpreter", "out_of": 8.0}
        verdict |= {"points": given.get(asked.name, 0.0), "pending": False, "waits": "", "text": [], "html": "<p>.</p>"}
        verdict |= {"cases": [["one", True], ["two", given.get(asked.name) == 8.0]], "mistake": "", "seconds": 0.1}
        verdict |= {"seed": appeals.fingerprint(judging.seed), "judged_by": verdicts.grader_hash(asked.name)}
        return verdict | {"machine": {"name": "a laptop", "host": "n1", "torch": "2", "triton": "3"}}

    monkeypatch.setattr(Judging, "made", made)
    return given


def changed(monkeypatch, *names: str) -> None:
    """These exercises mean something else from now on."""
    before = verdicts.grader_hash
    for module in (verdicts, appeals, marks):
        monkeypatch.setattr(module, "grader_hash", lambda name: before(name) + "new" * (name in names))


def run(folder: Path, only: str = "") -> dict[str, float]:
    """nbgrader's step of a grading run, and what it showed. Exercise -> points."""
    notebook = nbformat.read(ADA.path, as_version=4)
    names = {"student": "ada", "assignment": LESSON, "notebook": NAME}
    judged = grading.JudgedNotebook(release=str(RELEASES), verdicts=str(folder), only=only)
    cells = [cell for cell in judged.preprocess(notebook, {"nbgrader": names})[0].cells if is_check(cell)]
    shown = {}
    for cell in cells:
        asked = verdicts.asked_by(cell)
        about = marks._about(cell, asked) if asked else {}
        shown[cell.metadata.nbgrader["grade_id"]] = {"points": float(cell.outputs[-1].data["text/plain"]), **about}
    path = marks.shown_file("ada", LESSON, NAME, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({name: {"waits": "", "asks": "", **one} for name, one in shown.items()}))
    return {one["exercise"]: one["points"] for one in shown.values() if "exercise" in one}


def test_one_exercise_is_graded_anew_and_the_others_keep_the_verdicts_that_they_had(
    folder, points, monkeypatch, capsys
):
    run(folder)
    changed(monkeypatch, SOFTMAX, MATMUL)
    points |= {SOFTMAX: 8.0, MATMUL: 8.0}
    (change, _speed) = regrade.changes(LESSON, SOFTMAX)
    assert capsys.readouterr().err.endswith(f"\r{SOFTMAX}: 1 of 1 notebook\n"), "600 take a while"
    assert (change.student, change.before["points"], change.after["points"]) == ("ada", 2.0, 8.0)
    now = run(folder, only=SOFTMAX)
    assert (now[SOFTMAX], now[MATMUL]) == (8.0, 2.0)
    shown = json.loads(marks.shown_file("ada", LESSON, NAME, folder).read_text()).values()
    versions = {one["exercise"]: one["judged_by"] for one in shown if "exercise" in one}
    assert versions[SOFTMAX].endswith("new") and not versions[MATMUL].endswith("new")
    assert run(folder)[MATMUL] == 8.0, "and without it everything is judged by what exercises mean now"


def test_a_changed_answer_is_judged_whole_also_when_one_exercise_was_named(folder, points):
    run(folder)
    notebook = json.loads(ADA.path.read_text())
    notebook["metadata"][handed_in.CODE]["cells"].append(["own", "x = 1"])
    ADA.path.write_text(json.dumps(notebook))
    points[MATMUL] = 8.0
    assert run(folder, only=SOFTMAX)[MATMUL] == 8.0


def test_the_table_of_a_regrading_tells_marks_before_and_after_and_that_those_by_hand_stay():
    before, after = {"points": 2.0, "waits": ""}, {"points": 0.0, "waits": "a GPU"}
    change = regrade.Change("ada", True, before, after, "a mark by hand of 5 points")
    said = "\n".join(regrade.told(SOFTMAX, [change, replace(change, student="bob", after=before)]))
    assert said.startswith(f"{SOFTMAX}: marks that change: 1; that stay as they are: 1.")
    assert "waits for a GPU" in said and "bob" not in said
    assert "a mark by hand of 5 points stays, and a person is asked" in said and "mark by hand " in said
    assert "by hand" not in "".join(regrade.told(SOFTMAX, [replace(change, mark="")])), "no column that is empty"


def asked(**more) -> argparse.Namespace:
    return argparse.Namespace(student="ada", lesson=LESSON, exercise=SOFTMAX, why=False, again=False, **more)


WRONG = {"keys": "no_grad_changes_keys", "meter": "batch_forgotten", "table": "empty_set_passes"}
WRONG = {f"dispatch.{name}": mistake for name, mistake in WRONG.items()} | {"roofline.profile": "any_wait_blamed"}


@pytest.mark.parametrize("name", WRONG)
def test_why_shows_what_was_answered_and_expected_and_no_report_of_the_student_does(folder, name):
    judged = examine(exercise.get(name), find(f"{name}/mistakes/{WRONG[name]}").function, seed=3)
    kept = verdicts.stored(judged) | {"machine": {"torch": "2", "triton": "3"}, "seed": "", "endless": ["No end."]}
    said = appeals.reasons(appeals.Decided(ADA, "", Asked(name, False), kept, "", True))
    wrong = [number for number, line in enumerate(said) if line.startswith("  wrong: ")]
    assert "No end." in said, "feedback names cells that do not end too"
    assert wrong and all(re.match(r"    `\w+\S*`: answered .+, expected [\[{']", said[at + 1]) for at in wrong), said
    assert all(said[at + 2].startswith("    given {") for at in wrong) == (name != "roofline.profile"), "too long"
    truth = said[wrong[0] + 1].rpartition("expected ")[2]
    assert truth not in "".join(kept["text"]) and escape(truth) not in kept["html"]
    del kept["expected"]  # as an earlier version wrote it
    assert [line for line in said if not line.startswith(("    `", "    given "))] == appeals.reasons(
        appeals.Decided(ADA, "", Asked(name, False), kept, "", True)
    )


def test_a_verdict_is_judged_again_on_its_seed_and_compared_and_nothing_is_kept(folder, points, monkeypatch, capsys):
    monkeypatch.setattr(appeals.sandbox, "require", lambda: None)
    run(folder)
    before, again = sorted(folder.iterdir()), asked()
    again.again = True
    assert appeals.main(again) == appeals.SAME
    assert f"again, {SOFTMAX}: the same: 2 of 8." in capsys.readouterr().out
    points[SOFTMAX] = 8.0
    assert appeals.main(again) == appeals.DIFFERS
    assert "not the same: then 2 of 8, now 8 of 8; \u201ctwo\u201d was wrong and is right." in capsys.readouterr().out
    assert sorted(folder.iterdir()) == before
    changed(monkeypatch, SOFTMAX)
    appeals.main(again)
    assert "by the exercise as it is now, which changed since" in capsys.readouterr().out
    verdicts.seed_file(folder, LESSON).write_text("5")
    assert appeals.main(again) == appeals.REFUSED
    assert "or the run's seed, is no longer there: it cannot be judged again." in capsys.readouterr().out


def test_why_tells_no_seed_before_it_is_opened_and_then_the_one_of_this_text_alone(folder, points, monkeypatch, capsys):
    run(folder)
    why, own = asked(), str(ADA.judging().seed)
    why.why = True
    appeals.main(why)
    said = capsys.readouterr().out
    assert own not in said and "Its seed is closed" in said
    monkeypatch.setattr(seeds, "deadline", lambda lesson: datetime.datetime(2000, 1, 1))
    assert seeds.main(argparse.Namespace(lesson=LESSON, open=True)) == seeds.DONE
    appeals.main(why)
    said = capsys.readouterr().out
    assert f"try NOTEBOOK --seed {own} draws the same" in said
    assert verdicts.seed_file(folder, LESSON).read_text() not in said


def test_a_seed_can_be_read_by_its_owner_alone_and_is_told_when_not(folder, points):
    run(folder)
    path = verdicts.seed_file(folder, LESSON)
    assert path.stat().st_mode & 0o777 == 0o600
    assert seeds.told(LESSON) == [f"The seeds of {LESSON} are closed."]
    path.chmod(0o644)
    assert seeds.told(LESSON)[1] == f"Others can read them: chmod 600 {path}"


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")  # nbgrader's own, for each submission
def test_seeds_open_when_the_last_student_s_time_is_over(folder, monkeypatch, capsys):
    """The due date is over for all but one, who has a day more."""
    monkeypatch.setenv("PATH", environment()["PATH"])  # nbgrader calls alembic by name
    now, opened = datetime.datetime.now(datetime.UTC).replace(tzinfo=None), argparse.Namespace(lesson=LESSON, open=True)
    url = f"sqlite:///{folder.parent}/gradebook.db"
    with Gradebook(url) as book:
        book.add_assignment(LESSON, duedate=now - datetime.timedelta(hours=23))
        book.add_student("ada")
        book.add_student("bob")
        book.add_submission(LESSON, "ada")
        book.add_submission(LESSON, "bob").extension = datetime.timedelta(hours=24)
        book.db.commit()
    assert seeds.main(opened) == seeds.REFUSED and not seeds.is_open(LESSON)
    assert "stay closed until" in capsys.readouterr().err
    with Gradebook(url) as book:
        book.find_assignment(LESSON).duedate = now - datetime.timedelta(hours=25)
        book.db.commit()
    assert seeds.main(opened) == seeds.DONE and seeds.is_open(LESSON)
    with Gradebook(url) as book:  # an extension that was given since then
        book.find_submission(LESSON, "ada").extension = datetime.timedelta(hours=48)
        book.db.commit()
    assert not seeds.is_open(LESSON) and seeds.main(opened) == seeds.REFUSED
    with Gradebook(url) as book:
        book.find_submission(LESSON, "ada").extension = None
        book.db.commit()
    assert seeds.is_open(LESSON)


def test_seeds_that_were_opened_without_a_due_date_are_closed_by_one(folder, points, monkeypatch, capsys):
    run(folder)
    assert seeds.main(argparse.Namespace(lesson=LESSON, open=True)) == seeds.DONE
    assert "knows no due date" in capsys.readouterr().out
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    why = asked()
    why.why = True
    for hours, told in ((1, "Its seed is closed"), (-1, "draws the same")):
        monkeypatch.setattr(seeds, "deadline", lambda lesson, end=now + datetime.timedelta(hours=hours): end)
        assert appeals.main(why) == appeals.SAME and told in capsys.readouterr().out


def test_marks_by_hand_are_told_beside_the_verdict(folder, points):
    run(folder)
    one = next(one for one in appeals.decided("ada", LESSON) if one.asked == Asked(SOFTMAX, False))
    assert appeals.in_short(one) == "2 of 8; judged on a laptop (n1) in 0.1 s"
    assert "extra credit of 5 points counts" in appeals.in_short(replace(one, mark="extra credit of 5 points"))
    assert "not in the gradebook yet" in appeals.in_short(replace(one, counted=False))
    assert appeals.in_short(replace(one, verdict=None)) == "not judged yet"
    assert appeals.in_short(replace(one, verdict=None, why="no notebook")) == "no notebook"
    assert appeals.in_short(replace(one, verdict=one.verdict | {"waits": "a GPU"})) == "waits for a GPU"


def test_an_exercise_or_a_student_that_is_not_there_is_named(folder, capsys):
    ask = functools.partial(argparse.Namespace, lesson=LESSON, why=False, again=False)
    assert appeals.main(ask(student="ada", exercise="roofline.sofmax")) == appeals.REFUSED
    said = capsys.readouterr().err
    assert "No exercise of 01_roofline is called 'roofline.sofmax'. There are roofline.work, " in said
    assert appeals.main(ask(student="bob", exercise=SOFTMAX)) == appeals.REFUSED
    assert capsys.readouterr().err.endswith("Nothing of bob was taken in for 01_roofline.\n")


# ------------------------------------------------------------------------------------------- with nbgrader


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
def test_an_appeal_and_a_mended_exercise_from_hand_in_to_gradebook(tmp_path):
    unit, name = "00_start", "start"
    for part in ("autograder", "course_lib", f"solutions/{unit}", f"notebooks/{unit}"):
        shutil.copytree(COURSE / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(COURSE / "nbgrader_config.py", tmp_path)
    right = find("start.axpy/right/masked").source
    nearly = f"{right}\n_axpy = axpy\ndef axpy(a, x, y, out):\n    _axpy(a, x, y, out) if x.numel() else 1 / 0\n"
    answers = {"ada": right, "bob": nearly}
    for student, answer in (answers | {"cleo": answers["bob"]}).items():
        nb = json.loads((COURSE / "notebooks" / unit / f"{name}.ipynb").read_text())
        for cell in nb["cells"]:
            if cell["metadata"].get("nbgrader", {}).get("grade_id") == "start_axpy":
                cell["source"] = answer
        path = tmp_path / "submitted" / student / unit / f"{name}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(nb))

    def said(*line: str, status: int = 0) -> str:
        surroundings = environment() | {"PYTHONPATH": str(tmp_path), "HOME": os.environ["HOME"]}
        done = subprocess.run(line, cwd=tmp_path, env=surroundings, text=True, stdout=-1, stderr=subprocess.STDOUT)
        assert done.returncode == status, done.stdout
        return done.stdout

    def ours(*words: str, status: int = 0) -> str:
        return said(sys.executable, "-m", "autograder", *words, status=status)

    of_check = (
        "from grade g join submitted_notebook n on g.notebook_id = n.id join submitted_assignment s on "
        "n.assignment_id = s.id join base_cell c on g.cell_id = c.id where c.name = 'start_axpy_check'"
    )

    def book(order: str) -> list:
        with sqlite3.connect(tmp_path / "gradebook.db") as opened:
            return opened.execute(order).fetchall()

    def scores() -> dict:
        found = book(f"select s.student_id, g.auto_score, g.manual_score, g.needs_manual_grade {of_check}")
        return {student: rest for student, *rest in found}

    said("nbgrader", "generate_assignment", unit)
    said("nbgrader", "autograde", unit)
    assert "again, start.axpy: the same: 3.57 of 5." in ours("verdict", "bob", unit, "start.axpy", "--again")
    assert "wrong: no elements (n = 0): raised ZeroDivisionError" in ours("verdict", "bob", unit, "--why")
    ours("seeds", unit, "--open")
    seed = ours("verdict", "bob", unit, "--why").partition("--seed ")[2].partition(" ")[0]
    rehearsal = ours("try", f"submitted/bob/{unit}/{name}.ipynb", "--seed", seed, status=trying.NOT_FULL)
    files = map(Path.read_text, (tmp_path / "verdicts").glob("*.json"))
    (kept,) = [one for one in map(json.loads, files) if one["points"] == 3.57]
    assert all(line in rehearsal for line in kept["text"]), "the same sizes, the same elements"

    of_cleo = f"select g.id {of_check} and s.student_id = 'cleo'"
    book(f"update grade set manual_score = 2.5, needs_manual_grade = 0 where id in ({of_cleo})")
    axpy = tmp_path / "autograder/exercises/start/axpy.py"
    lines = axpy.read_text().splitlines(keepends=True)
    mended = [line for line in lines if 'Case("no elements"' not in line]
    assert len(mended) == len(lines) - 1
    axpy.write_text("".join(mended))
    assert "the exercise changed since" in ours("verdict", "bob", unit)
    before, told = scores(), ours("regrade", unit, "start.axpy")
    assert "start.axpy: marks that change: 2; that stay as they are: 1." in told
    assert "2.5 points stays, and a person is asked" in told
    assert scores() == before == {"ada": [5.0, None, 0], "bob": [3.57, None, 0], "cleo": [3.57, 2.5, 0]}
    ada, kept = tmp_path / "submitted/ada" / unit / f"{name}.ipynb", tmp_path / "kept.ipynb"
    shutil.move(ada, kept)
    shutil.copy(COURSE / "notebooks" / unit / f"{name}.ipynb", ada)  # copied in, and nothing in it is solved
    left_out = "Left out, since what was graded is not what lies there now: ada."
    told = ours("regrade", unit, "start.axpy", "--write")
    assert left_out in told and "start.axpy: marks that change: 2; that stay as they are: 0." in told
    assert scores() == {"ada": [5.0, None, 0], "bob": [5.0, None, 0], "cleo": [5.0, 2.5, 1]}
    assert left_out in ours("regrade", unit, "start.axpy"), "also where it was read before"
    shutil.move(kept, ada)
    assert "that change: 0; that stay as they are: 3" in ours("regrade", unit, "start.axpy")
