"""nbgrader's own commands, as its manual describes them, from a clean copy of a small course."""

import csv
import getpass
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from autograder.bank import find

COURSE = Path(__file__).resolve().parents[2]
RIGHT = find("start.axpy/right/masked").source
ONE_CASE_WRONG = RIGHT + "\n_axpy = axpy\ndef axpy(a, x, y, out):\n    _axpy(a, x, y, out) if x.numel() else 1 / 0\n"


@pytest.mark.slow
def test_a_lesson_goes_from_release_to_feedback_with_plain_nbgrader(built, course):
    """`make test` grades a cohort in test_grading.py, with generate_assignment, autograde and generate_feedback."""

    def nbgrader(*words):
        done = course.run("nbgrader", *words)
        assert done.returncode == 0, f"nbgrader {' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    nbgrader("generate_assignment", "00_start")
    assert course.release.read_bytes() == built.release.read_bytes(), "the plain command builds the same bytes"
    nbgrader("release_assignment", "00_start")

    nbgrader("fetch_assignment", "00_start")
    notebook = course.root / "work" / "00_start" / "start.ipynb"
    stub = 'raise NotImplementedError(\\"not written yet\\")'
    assert stub in notebook.read_text()
    assert "failed" in nbgrader("validate", str(notebook)).lower()
    notebook.write_text(notebook.read_text().replace(stub, "twice = 2 * x if x < 4 else 0"))
    nbgrader("submit", "00_start")

    nbgrader("collect", "00_start")
    assert (course.root / "submitted" / getpass.getuser() / "00_start" / "start.ipynb").exists()
    nbgrader("autograde", "00_start")
    nbgrader("generate_feedback", "00_start")
    feedback = course.root / "feedback" / getpass.getuser() / "00_start" / "start.html"
    assert "double_points" in feedback.read_text()
    nbgrader("release_feedback", "00_start")
    nbgrader("fetch_feedback", "00_start")
    fetched = list((course.root / "work/00_start/feedback").rglob("start.html"))
    assert [page.read_text() for page in fetched] == [feedback.read_text()]
    nbgrader("export")
    row = next(csv.DictReader((course.root / "grades.csv").read_text().splitlines()))
    assert (float(row["score"]), float(row["max_score"])) == (3.0, 6.0)
    assert not (course.root / "notebooks" / "00_start" / "start.py").exists()


@pytest.mark.slow
def test_without_the_settings_of_the_course_stock_nbgrader_reads_the_scores_of_check(tmp_path):
    """The notebooks are executed then, and what the referee would do is done by `check` in the same process."""
    (tmp_path / "nbgrader_config.py").write_text("")
    place = tmp_path / "source/00_start"
    place.mkdir(parents=True)
    shutil.copy(COURSE / "solutions/00_start/start.ipynb", place)
    environment = os.environ | {"PYTHONPATH": str(COURSE), "JUPYTER_PREFER_ENV_PATH": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"

    def nbgrader(*words):
        done = subprocess.run(["nbgrader", *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    nbgrader("generate_assignment", "00_start")
    for student, answer in (("right", RIGHT), ("one case wrong", ONE_CASE_WRONG), ("untouched", None)):
        notebook = nbformat.read(tmp_path / "release/00_start/start.ipynb", 4)
        for cell in notebook.cells:
            if answer and cell.metadata.get("nbgrader", {}).get("grade_id") == "start_axpy":
                cell.source = answer
        (tmp_path / "submitted" / student / "00_start").mkdir(parents=True)
        nbformat.write(notebook, tmp_path / "submitted" / student / "00_start/start.ipynb")
    nbgrader("autograde", "00_start")

    with sqlite3.connect(tmp_path / "gradebook.db") as book:
        rows = book.execute(
            "select s.student_id, g.auto_score from grade g join submitted_notebook n on g.notebook_id = n.id "
            "join submitted_assignment s on n.assignment_id = s.id join base_cell c on g.cell_id = c.id "
            "where c.name = 'start_axpy_check'"
        ).fetchall()
    book.close()
    assert dict(rows) == {"right": 5.0, "one case wrong": 3.57, "untouched": 0.0}
