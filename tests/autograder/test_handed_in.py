"""What was handed in becomes a readable notebook: whatever its name, its size, its form."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from autograder.bank import find
from autograder.classroom import handed_in
from autograder.referee.submission import extract

COURSE = Path(__file__).resolve().parents[2]
UNIT, NAME = "00_start", "start"


def _answered() -> str:
    """Lesson 00 with a right answer, as a file."""
    notebook = json.loads((COURSE / "notebooks" / UNIT / f"{NAME}.ipynb").read_text())
    for cell in notebook["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == "start_axpy":
            cell["source"] = find("start.axpy/right/masked").source
    return json.dumps(notebook)


ANSWERED = _answered()


def test_a_notebook_handed_in_beside_what_an_earlier_grading_put_there_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(handed_in, "RECORD", tmp_path / "submitted" / ".put_right")
    folder = tmp_path / "submitted" / "late" / UNIT
    folder.mkdir(parents=True)
    (folder / "lesson.pdf").write_text("a summary")
    handed_in.prepare(folder, COURSE / "notebooks" / UNIT)
    (folder / "at last.ipynb").write_text(ANSWERED)
    notebooks = sorted(map(str, folder.glob("*.ipynb")))
    handed_in.readable(UNIT, "late", notebooks)
    assert notebooks == [str(folder / f"{NAME}.ipynb")]
    assert "_axpy" in (folder / f"{NAME}.ipynb").read_text() and "at last" in (folder / f"{NAME}.ipynb").read_text()


def put(tmp_path, monkeypatch, notebook):
    """A notebook that was handed in, as `readable` finds it."""
    monkeypatch.setattr(handed_in, "RECORD", tmp_path / "submitted" / ".put_right")
    path = tmp_path / "submitted" / "somebody" / UNIT / f"{NAME}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(notebook if isinstance(notebook, str) else json.dumps(notebook))
    handed_in.readable(UNIT, "somebody", [str(path)])
    return path


def test_what_was_put_right_is_told_only_of_a_notebook_that_was_written_here(tmp_path, monkeypatch):
    forged = json.loads(ANSWERED)
    forged["metadata"][handed_in.NOTES] = ["Graded again by hand: full points."]
    assert not handed_in.is_ours(put(tmp_path, monkeypatch, forged))
    path = put(tmp_path, monkeypatch, "{")
    assert handed_in.is_ours(path)
    assert "could not be read" in nbformat.read(path, as_version=4).metadata[handed_in.NOTES][0]
    path.write_text(path.read_text() + " ")
    assert not handed_in.is_ours(path)


@pytest.mark.parametrize("ids", [True, False])
def test_a_large_notebook_is_read_without_its_outputs_and_the_original_kept(ids, tmp_path, monkeypatch):
    notebook = json.loads(ANSWERED)
    shown = {"output_type": "stream", "name": "stdout", "text": "x" * handed_in.LARGE}
    next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")["outputs"] = [shown]
    if not ids:
        notebook["nbformat_minor"] = 4
        for one in notebook["cells"]:
            del one["id"]
    path = put(tmp_path, monkeypatch, notebook)
    assert path.stat().st_size < 100_000 < path.with_suffix(".original").stat().st_size
    assert "_axpy" in path.read_text() and "without outputs" in path.read_text()
    assert any("_axpy" in one.source for one in extract_of(path).cells)


def extract_of(path):
    release = nbformat.read(COURSE / "notebooks" / UNIT / f"{NAME}.ipynb", as_version=4)
    return extract(release, nbformat.read(path, as_version=4))


def odd(change):
    notebook = json.loads(ANSWERED)
    change(notebook)
    return notebook


def heading(nb):
    """nbformat 3, where a heading has a level: nbformat makes as many signs."""
    cells = [{"cell_type": "heading", "level": 3_000_000_000, "source": "x", "metadata": {}}]
    for one in nb.pop("cells"):
        one["input"] = one["source"]
        cells.append(one)
    nb.update({"worksheets": [{"cells": cells}], "nbformat": 3, "nbformat_minor": 0})


ODD = {
    "many tags": lambda nb: nb["cells"][0]["metadata"].update(tags=[*range(8000), "a"]),
    "heading": heading,
    "metadata": lambda nb: nb["cells"][0]["metadata"].update(more=[{}] * 200_000),
    "source of numbers": lambda nb: nb["cells"].insert(
        0, {**nb["cells"][0], "id": "x", "source": ["a"] * 90_000 + [1]}
    ),
    "no source": lambda nb: nb["cells"].insert(0, {"cell_type": "code", "metadata": {}}),
    "a number for a source": lambda nb: (nb["cells"][0].update(source=5), nb.update(nbformat_minor=99)),
    "no outputs": lambda nb: [one.pop("outputs", None) for one in nb["cells"]],
    "an id with a sign": lambda nb: nb["cells"].insert(0, {**nb["cells"][0], "id": "#" * 70}),
    "an extra key": lambda nb: nb["cells"][0].update(mine=1),
    "one id for all": lambda nb: [one.update(id="same") for one in nb["cells"]],
    "thousands of cells": lambda nb: nb["cells"].extend({**nb["cells"][0], "id": f"x{n}"} for n in range(4000)),
}


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_notebook_is_read_in_seconds_and_its_answer_kept(kind, tmp_path, monkeypatch):
    start = time.perf_counter()
    path = put(tmp_path, monkeypatch, odd(ODD[kind]))
    assert time.perf_counter() - start < 5.0
    assert path.with_suffix(".original").exists() and handed_in.is_ours(path)
    nbformat.validate(nbformat.read(path, as_version=4))
    assert any("_axpy" in one.source for one in extract_of(path).cells)


def test_a_mark_at_the_beginning_of_the_file_is_no_reason_to_give_up(tmp_path, monkeypatch):
    text = "\ufeff" + ANSWERED
    assert any("_axpy" in one.source for one in extract_of(put(tmp_path, monkeypatch, text)).cells)


def test_a_link_is_nobodys_notebook(tmp_path, monkeypatch):
    put(tmp_path, monkeypatch, ANSWERED)
    folder = tmp_path / "submitted" / "copies" / UNIT
    folder.mkdir(parents=True)
    (folder / f"{NAME}.ipynb").symlink_to(tmp_path / "submitted" / "somebody" / UNIT / f"{NAME}.ipynb")
    handed_in.readable(UNIT, "copies", [str(folder / f"{NAME}.ipynb")])
    assert "it is no file" in (folder / f"{NAME}.ipynb").read_text()
    assert "static_assert(False" in (folder / f"{NAME}.ipynb").read_text(), "the empty release"


def test_names_and_times_that_cannot_be_read_stop_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(handed_in, "RECORD", tmp_path / "submitted" / ".put_right")
    folder = tmp_path / "submitted" / "eve" / UNIT
    folder.mkdir(parents=True)
    (folder / f"{NAME}.ipynb").mkdir()
    (folder / os.fsdecode(b"L\xf6sung\x1b[2J.pdf")).write_text("words")
    for text in ("junk", "9" * 20, "2026-01-01 10:00:00 UTC"):
        (folder / "timestamp.txt").write_text(text)
        handed_in.prepare(folder, COURSE / "notebooks" / UNIT)
        assert (folder / "timestamp.txt").exists() == text.startswith("2026")
    assert "L?sung?[2J.pdf" in (folder / f"{NAME}.ipynb").read_text()


def test_settings_whose_beginning_fails_end_the_command(tmp_path):
    shutil.copy(COURSE / "nbgrader_config.py", tmp_path)
    for room in ("autograder", "course_lib", "notebooks"):
        (tmp_path / room).symlink_to(COURSE / room)
    (tmp_path / "submitted" / "eve" / UNIT).mkdir(parents=True)
    broken = "def prepare(*_):\n    raise UnicodeEncodeError('utf-8', '', 0, 1, 'x')\n"
    broken += "from autograder.classroom import handed_in\nhanded_in.prepare = prepare\n"
    (tmp_path / "sitecustomize.py").write_text(broken)
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", "autograde", UNIT],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": f"{tmp_path}:{COURSE}"}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode != 0 and "refused. UnicodeEncodeError" in done.stderr
    assert not (tmp_path / "autograded").exists()


NO_NOTEBOOK = {
    "objects": "{}," * 2_000_000,
    "cells": '{"cells": [' + "{}," * 1_500_000 + "{}]}",
    "lists": "[" * 5_000_000,
}


@pytest.mark.parametrize("kind", NO_NOTEBOOK)
def test_a_large_file_that_is_no_notebook_is_put_aside_in_seconds(kind, tmp_path, monkeypatch):
    start = time.perf_counter()
    path = put(tmp_path, monkeypatch, NO_NOTEBOOK[kind])
    assert time.perf_counter() - start < 15.0
    assert "could not be read" in path.read_text() and path.with_suffix(".damaged").exists()


def test_a_file_too_large_to_be_read_is_put_aside_and_its_size_told(tmp_path, monkeypatch):
    monkeypatch.setattr(handed_in, "LARGEST", 5 << 20)
    assert "it has 6 MB, at most 5 are read" in put(tmp_path, monkeypatch, " " * (6 << 20)).read_text()
