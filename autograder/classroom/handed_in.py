"""Whatever was handed in becomes one readable notebook of the lesson's name, or the empty release with the reason.

What the student handed in stays as it was beside it: a damaged notebook as `.damaged`, a very large one as `.large`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograder.referee.submission import CELLS

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "submitted" / ".put_right"  # hashes of the notebooks that were written here
NOTES = "speed_of_light_notes"  # in a notebook's metadata: what was put right
LARGE, LARGEST = 4 << 20, 32 << 20  # bytes of a notebook; a lesson solved and executed has 0.6 MB
METADATA = 10_000  # characters of a cell's metadata


def readable(assignment: str, student: str, notebooks: list[str]) -> None:
    """Before nbgrader reads a submission: a notebook that cannot be read, or has another name, is put right.

    nbgrader swallows what a hook raises, so nothing may be raised here; `notebooks` is changed in place.
    """
    log = logging.getLogger("speed of light")
    try:
        for release in sorted((ROOT / "notebooks" / assignment).glob("*.ipynb")):
            expected = [Path(n) for n in notebooks if Path(n).name == release.name]
            if notebooks and (not expected or (len(notebooks) > 1 and is_ours(expected[0]))):
                _named(release, notebooks, log)
            for path in (Path(n) for n in notebooks if Path(n).name == release.name):
                _parsed(release, path, log)
    except Exception as error:
        log.error("%s, %s: could not be looked at: %s", student, assignment, error)


def fill(submission: Path, releases: Path) -> None:
    """A folder without any notebook gets the empty release: nbgrader would pass over it without a word."""
    if any(submission.glob("*.ipynb")):
        return
    held = ", ".join(sorted(p.name for p in submission.iterdir() if p.name != "timestamp.txt")) or "nothing"
    for release in releases.glob("*.ipynb"):
        _stand_in(release, submission / release.name, f"No notebook was handed in. The folder held: {held}.")


def _named(release: Path, notebooks: list[str], log) -> None:
    """One notebook under another name stands for the one that is missing; of several, nobody can tell which."""
    others = [Path(n) for n in notebooks if Path(n).name != release.name]
    names = ", ".join(path.name for path in others)
    missing = others[0].with_name(release.name)
    if len(others) == 1:
        say = f"{names} was taken for {release.name}."
        try:
            if others[0].stat().st_size > LARGE:
                raise TooLarge
            written = nbformat.read(others[0], as_version=4)
        except Exception:
            shutil.copyfile(others[0], missing)  # what is wrong with it is said below
        else:
            _write(written, missing, say)
    else:
        say = f"None of {names} is called {release.name}, so none was graded. Rename the one that counts."
        _stand_in(release, missing, say)
    log.warning("%s: %s", missing.parent, say)
    notebooks[:] = [str(missing)]


def _parsed(release: Path, path: Path, log) -> None:
    """A notebook that is no notebook is kept aside, and the empty release graded in its place."""
    try:
        if path.stat().st_size > LARGE:
            _without_outputs(path, log)
        nbformat.validate(nbformat.read(path, as_version=4))
    except Exception as error:
        why = str(error) if isinstance(error, TooLarge) else type(error).__name__
        os.replace(path, path.with_suffix(".damaged"))
        say = f"The notebook could not be read ({why}); the original is kept."
        _stand_in(release, path, say)
        log.warning("%s: %s", path, say)


class TooLarge(ValueError):
    """More than can be read without harm to the others."""


def _without_outputs(path: Path, log) -> None:
    """What grading reads of a large notebook, in its place. Checking all of it would take minutes and gigabytes."""
    size = path.stat().st_size / 2**20
    if size > LARGEST / 2**20:
        raise TooLarge(f"it has {size:.0f} MB, at most {LARGEST / 2**20:.0f} are read")
    data = json.loads(path.read_bytes())
    kept = {"cells": [_bare(cell) for cell in data["cells"][: 2 * CELLS]], "metadata": {}}
    kept |= {name: data[name] for name in ("nbformat", "nbformat_minor")}
    notebook = nbformat.reads(json.dumps(kept), as_version=4)
    nbformat.validate(notebook)
    os.replace(path, path.with_suffix(".large"))
    say = f"The notebook has {size:.1f} MB, so its outputs were left out; the original is kept."
    _write(notebook, path, say)
    log.warning("%s: %s", path, say)


def _bare(cell: dict) -> dict:
    kept = {name: cell[name] for name in ("cell_type", "id", "source") if name in cell}
    kept["metadata"] = cell["metadata"] if len(json.dumps(cell["metadata"])) < METADATA else {}
    return kept | ({"outputs": [], "execution_count": None} if cell["cell_type"] == "code" else {})


def is_ours(path: Path) -> bool:
    """Whether we wrote this very file, so that what it says was put right is true, and what lies beside it may be
    newer. A student's notebook can hold the same words, and its hash is not in our list."""
    return path.exists() and RECORD.exists() and _hash(path) in RECORD.read_text().split()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def notes_of(notebook: NotebookNode) -> list[str]:
    """What was put right so far; a student's notebook may hold anything in its place."""
    notes = notebook.metadata.get(NOTES)
    return [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []


def _stand_in(release: Path, path: Path, say: str) -> None:
    """The empty release in place of what was handed in, and why."""
    _write(nbformat.read(release, as_version=4), path, say)


def _write(notebook: NotebookNode, path: Path, say: str) -> None:
    notebook.metadata[NOTES] = [say]
    nbformat.write(notebook, path)
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    with RECORD.open("a") as record:
        record.write(f"{_hash(path)}\n")
