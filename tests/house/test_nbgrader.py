"""nbgrader's own commands, as its manual describes them, from a clean copy of a small course."""

import csv
import getpass


def test_a_lesson_goes_from_release_to_feedback_with_plain_nbgrader(built, course):
    def nbgrader(*words):
        done = course.run("nbgrader", *words)
        assert done.returncode == 0, f"nbgrader {' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    nbgrader("generate_assignment", "00_start")
    assert course.release.read_bytes() == built.release.read_bytes(), "the plain command builds the same bytes"
    nbgrader("release_assignment", "00_start")

    nbgrader("fetch_assignment", "00_start")
    notebook = course.root / "00_start" / "start.ipynb"
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
    nbgrader("export")
    row = next(csv.DictReader((course.root / "grades.csv").read_text().splitlines()))
    assert (float(row["score"]), float(row["max_score"])) == (3.0, 6.0)
    assert not (course.root / "notebooks" / "00_start" / "start.py").exists()
