"""Whatever was handed in becomes one readable notebook of the lesson's name, or the empty release with the reason.

What the student handed in stays as it was beside it: a damaged notebook as `.damaged`, an odd one as `.original`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.utils import parse_utc

from autograder.referee.submission import CELLS, writable

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "submitted" / ".put_right"  # hashes of the notebooks that were written here
NOTES = "speed_of_light_notes"  # in a notebook's metadata: what was put right
LARGE, LARGEST = 1 << 20, 32 << 20  # bytes of a notebook; a lesson solved and executed has 0.6 MB
METADATA = 2_000  # characters of a cell's metadata
MARKS = ("grade", "grade_id", "locked", "points", "schema_version", "solution", "task", "cell_type", "checksum")
ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def readable(assignment: str, student: str, notebooks: list[str]) -> None:
    """Before nbgrader reads a submission: a notebook that cannot be read, or has another name, is put right.

    nbgrader swallows what a hook raises, so nothing may be raised here; `notebooks` is changed in place.
    """
    log = logging.getLogger("speed of light")
    try:
        for release in sorted((ROOT / "notebooks" / assignment).glob("*.ipynb")):
            expected = [Path(n) for n in notebooks if Path(n).name == release.name]
            said: list[str] = []
            if notebooks and (not expected or (len(notebooks) > 1 and is_ours(expected[0]))):
                said = _named(release, notebooks)
            for path in (Path(n) for n in notebooks if Path(n).name == release.name):
                _parsed(release, path, said)
                for say in said:
                    log.warning("%s: %s", path, say)
    except Exception as error:
        log.error("%s, %s: could not be looked at: %s", student, assignment, error)


def prepare(submission: Path, releases: Path) -> None:
    """Before nbgrader looks at the folder: what it would pass over without a word, or would raise at."""
    stamp = submission / "timestamp.txt"
    try:
        if stamp.exists():
            parse_utc(stamp.read_text().strip())
    except (ValueError, OverflowError, OSError):
        os.replace(stamp, stamp.with_suffix(".damaged"))
    for folder in (path for path in submission.glob("*.ipynb") if path.is_dir()):
        os.replace(folder, folder.with_suffix(".damaged"))
    if any(submission.glob("*.ipynb")):
        return
    held = ", ".join(sorted(_name(p) for p in submission.iterdir() if p.name != "timestamp.txt")) or "nothing"
    for release in releases.glob("*.ipynb"):
        _stand_in(release, submission / release.name, [f"No notebook was handed in. The folder held: {held}."])


def _name(path: Path) -> str:
    """For reports and terminals: a file can be called anything."""
    return "".join(c if c.isprintable() else "?" for c in writable(path.name))[:80]


def _named(release: Path, notebooks: list[str]) -> list[str]:
    """One notebook under another name stands for the one that is missing; of several, nobody can tell which."""
    others = [Path(n) for n in notebooks if Path(n).name != release.name]
    names = ", ".join(map(_name, others))
    missing = others[0].with_name(release.name)
    notebooks[:] = [str(missing)]
    if len(others) == 1 and not others[0].is_symlink() and others[0].is_file():
        shutil.copyfile(others[0], missing)
        return [f"{names} was taken for {release.name}."]
    say = f"None of {names} is called {release.name}, so none was graded. Rename the one that counts."
    _stand_in(release, missing, [say])
    return []


def _parsed(release: Path, path: Path, said: list[str]) -> None:
    """nbformat is never given what was handed in if that is large or odd: some files of a few KB take it minutes, or
    gigabytes. Then its cells are read here, and written anew. What is no notebook is kept aside, and the empty release
    graded in its place."""
    if is_ours(path):
        return
    try:
        size = path.stat().st_size
        if path.is_symlink() or not path.is_file():
            raise Unread("it is no file")
        if size > LARGEST:
            raise Unread(f"it has {size / 2**20:.0f} MB, at most {LARGEST / 2**20:.0f} are read")
        data = json.loads(path.read_bytes().decode("utf-8-sig"))
        odd, cells = _odd(data, size) or _invalid(path), _clean(_cells(data))
        if not odd and not said:
            return
    except Exception as error:
        why = str(error) if isinstance(error, Unread) else type(error).__name__
        os.replace(path, path.with_suffix(".damaged"))
        said.append(f"The notebook could not be read ({why}); the original is kept.")
        _stand_in(release, path, said)
        return
    os.replace(path, path.with_suffix(".original"))
    if odd:
        said.append(f"The notebook {odd}. Its cells were read all the same, without outputs; the original is kept.")
    _write({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, path, said)


class Unread(ValueError):
    """What is not even looked at."""


def _cells(data: dict) -> list[dict]:
    """Of nbformat 4, or of 3, which had worksheets and headings; KeyError where it is no notebook."""
    if data["nbformat"] == 3:
        found = [cell for sheet in data["worksheets"] for cell in sheet["cells"]]
        return [{**cell, "source": cell.get("input", cell.get("source", ""))} for cell in found]
    return list(data["cells"])


def _odd(data: dict, size: int) -> str:
    """Why nbformat should not read it, or ''."""
    cells = data["cells"] if data.get("nbformat") == 4 else []
    ids = [cell.get("id") for cell in cells if "id" in cell]
    texts = [cell.get("source") for cell in cells]
    if size > LARGE:
        return f"has {size / 2**20:.1f} MB"
    if data.get("nbformat") != 4:
        return "has an old format"
    if len(cells) > CELLS or len(set(map(str, ids))) < len(ids):
        return "has cells twice, or thousands"
    if any(len(json.dumps(cell.get(part, {}))) > METADATA for cell in cells for part in ("metadata", "attachments")):
        return "holds more than text and code"
    if not all(isinstance(line, str) for text in texts for line in (text if isinstance(text, list) else [text])):
        return "has cells without text"
    return ""


def _invalid(path: Path) -> str:
    """Why nbformat does not take it, or ''."""
    try:
        nbformat.validate(nbformat.read(path, as_version=4))
    except Exception as error:
        return f"is not valid ({type(error).__name__})"
    return ""


def _clean(cells: list[dict]) -> list[dict]:
    """Type, text and name of each cell, and nothing else; with ids of ours where there are none that can stay."""
    made, ids = [], set()
    for number, cell in enumerate(cells[: 2 * CELLS]):
        source, metadata = cell.get("source", ""), cell.get("metadata", {})
        parts = source if isinstance(source, list) else [source]
        marks = metadata.get("nbgrader") if isinstance(metadata, dict) else None
        kept = (
            {"nbgrader": {n: v for n, v in marks.items() if n in MARKS and isinstance(v, str | bool | int)}}
            if isinstance(marks, dict)
            else {}
        )
        known = cell.get("id")
        if not (isinstance(known, str) and ID.fullmatch(known)) or known in ids:
            known = f"read-{number}"
        ids.add(known)
        kind = cell.get("cell_type") if cell.get("cell_type") in ("code", "raw") else "markdown"
        one = {
            "cell_type": kind,
            "id": known,
            "metadata": kept,
            "source": "".join(p for p in parts if isinstance(p, str)),
        }
        made.append(one | ({"outputs": [], "execution_count": None} if kind == "code" else {}))
    return made


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


def _stand_in(release: Path, path: Path, said: list[str]) -> None:
    """The empty release in place of what was handed in, and why."""
    _write(json.loads(release.read_text(encoding="utf-8")), path, said)


def _write(notebook: dict, path: Path, said: list[str]) -> None:
    notebook["metadata"][NOTES] = said
    path.write_text(json.dumps(notebook), encoding="utf-8")
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    with RECORD.open("a") as record:
        record.write(f"{_hash(path)}\n")
