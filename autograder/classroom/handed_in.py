"""Whatever was handed in becomes one readable notebook of the lesson's name, or the empty release with the reason.

Only copies are made: what the student handed in stays as it was beside them (a damaged notebook as `.damaged`).
"""

from __future__ import annotations

import logging
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[2]
NOTES = "speed_of_light_notes"  # in a notebook's metadata: what was put right; only grading writes it


def readable(assignment: str, student: str, notebooks: list[str]) -> None:
    """Before nbgrader reads a submission: a notebook that cannot be read, or has another name, is put right.

    nbgrader swallows what a hook raises, so nothing may be raised here; `notebooks` is changed in place.
    """
    log = logging.getLogger("speed of light")
    try:
        for release in sorted((ROOT / "notebooks" / assignment).glob("*.ipynb")):
            expected = [Path(n) for n in notebooks if Path(n).name == release.name]
            if notebooks and (not expected or (len(notebooks) > 1 and _is_ours(expected[0]))):
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
            written = nbformat.read(others[0], as_version=4)
        except Exception:
            missing.write_bytes(others[0].read_bytes())  # what is wrong with it is said below
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
        nbformat.validate(nbformat.read(path, as_version=4))
    except Exception as error:
        path.with_suffix(".damaged").write_bytes(path.read_bytes())
        say = f"The notebook could not be read ({type(error).__name__}); the original is kept."
        _stand_in(release, path, say)
        log.warning("%s: %s", path, say)


def _is_ours(path: Path) -> bool:
    """Whether an earlier grading put it there: then what lies beside it may be newer."""
    try:
        return NOTES in nbformat.read(path, as_version=4).metadata
    except Exception:
        return False


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
