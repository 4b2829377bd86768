"""The whole tree passes ruff, lessons included, and the code of lessons is narrow."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from autograder.classroom import lessons

COURSE = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "words", [("check", "--no-cache"), ("format", "--check", "--no-cache")], ids=["lint", "format"]
)
def test_every_file_passes_ruff(words):
    done = subprocess.run([sys.executable, "-m", "ruff", *words, "."], cwd=COURSE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_code_of_lessons_is_at_most_88_columns_wide():
    """A notebook cell beside JupyterLab's file browser shows about that much, as do a page of the site and a laptop.

    ruff wraps code; strings, docstrings and comments are wrapped by hand. Two kinds of lines wait until their lesson is
    executed again, since a change would drop the outputs of their cell: docstrings, and a line that a traceback quotes.
    """
    wide, waiting = [], []
    for lesson in lessons.find(COURSE):
        for cell in nbformat.read(lesson.solution, as_version=4).cells:
            for line in cell.source.splitlines() if cell.cell_type == "code" else ():
                if len(line) <= 88:
                    continue
                docstring = line.strip().startswith('"""') and bool(cell.outputs)
                waits = docstring or line.removesuffix("  # fmt: skip").strip() in str(cell.outputs)
                (waiting if waits else wide).append(f"{lesson.unit}: {line}")
    assert not wide, "\n".join(wide)
    assert len(waiting) <= 39, "\n".join(waiting)
