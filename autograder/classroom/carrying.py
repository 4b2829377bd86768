"""`python -m autograder carry LESSON`: a student's answers, brought into a newer version of a lesson.

`lab` keeps beside the copy in work/ what it was copied from (work/.given). So it is known what a student changed, and
what the course changed since. Cells are the same when they have the same grade_id, or else the same id: of a cell that
is not graded that is a hash of its text, so one that the course rewrote has another id. Where an editor dropped the
ids or gave others, a cell with the text of one of the lesson's is that one.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from autograder.classroom.counted import many
from course_lib.places import HOME, RELEASES

GIVEN = ".given"  # in work/: each file as it was when it was copied
BEFORE = "before"  # in work/: notebooks as they were before answers were carried over
OF_A_LESSON = re.compile(r"([0-9a-f]{12})(-\d+)?")  # the id of a cell that is not graded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lesson", help="a folder of work/, such as 04_flash")


def main(args: argparse.Namespace) -> int:
    releases = sorted(path for path in RELEASES.glob("*/*.ipynb") if args.lesson in (path.parent.name, path.stem))
    if not releases:
        known = ", ".join(sorted(path.parent.name for path in RELEASES.glob("*/*.ipynb")))
        print(f"No lesson is called {args.lesson}; there are {known}.")
        return 2
    for release in releases:
        where = release.relative_to(RELEASES)
        mine = HOME / "work" / where
        if not mine.exists():
            print(f"work/{where} is not there: `lab` copies it.")
            return 1
        try:
            for line in carry(release, mine, HOME / "work"):
                print(line)
        except (ValueError, KeyError, TypeError) as error:
            print(f"work/{where} is no notebook that can be read ({error}). Save it again in JupyterLab.")
            return 1
    return 0


def carry(release: Path, mine: Path, work: Path) -> list[str]:
    """Write the new notebook in place of `mine`, and keep that one; what is to be said about it."""
    where, given = mine.relative_to(work), work / GIVEN / mine.relative_to(work)
    if given.exists() and given.read_bytes() == release.read_bytes():
        return [f"work/{where} was made from this version: there is nothing to do."]
    base = notebook_of(given)["cells"] if given.exists() else None
    made, said = carried(notebook_of(mine), notebook_of(release), base)
    numbered = (work / BEFORE / where.with_stem(f"{mine.stem}-{number}") for number in itertools.count(1))
    kept = next(path for path in numbered if not path.exists())
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(mine, kept)
    write(mine, (json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode())
    remember(release, given)
    return [f"work/{where} is the new version now. Your old one is {kept.relative_to(work.parent)}.", *said]


def notebook_of(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def remember(release: Path, given: Path) -> None:
    given.parent.mkdir(parents=True, exist_ok=True)
    write(given, release.read_bytes())


def write(path: Path, data: bytes) -> None:
    """In one step: a copy that was cut off would be hours of somebody's work."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(data)
    os.replace(beside, path)


# ------------------------------------------------------------------------------------------- what changed


def renew(releases: Path, work: Path) -> list[str]:
    """Of the files in work/ that the course changed: renew those that the student did not change, and say which others
    have a newer version."""
    said = []
    for release in sorted(releases.glob("*/*")):
        where = release.relative_to(releases)
        mine, given = work / where, work / GIVEN / where
        if not release.is_file() or not mine.is_file() or not changed(release, mine, given):
            continue
        if given.exists() and mine.read_bytes() == given.read_bytes():
            write(mine, release.read_bytes())
            remember(release, given)
            said.append(f"work/{where} has a new version; yours was untouched, so it was renewed.")
        elif release.suffix == ".ipynb":
            said.append(
                f"work/{where} has a new version. Yours stays as it is. To bring your answers into the new one: "
                f"make carry LESSON={where.parent} (or: python -m autograder carry {where.parent})"
            )
        else:
            said.append(f"work/{where} has a new version, and you changed yours. The new one: {release}")
    return said


def changed(release: Path, mine: Path, given: Path) -> bool:
    """Whether the course changed it since it was copied."""
    new = release.read_bytes()
    if given.exists():
        return given.read_bytes() != new
    if release.suffix != ".ipynb":
        return False
    try:  # copied by hand, or long ago: a cell that nobody edited and the release does not have tells it
        ids = {cell.get("id") for cell in json.loads(new)["cells"]}
        return any(is_untouched(cell) and cell["id"] not in ids for cell in notebook_of(mine)["cells"])
    except (ValueError, KeyError, TypeError):
        return False


def is_untouched(cell: dict) -> bool:
    """Whether a cell that is not graded has the text that its id is made of."""
    made_of = OF_A_LESSON.fullmatch(str(cell.get("id", "")))
    text = f"{cell['cell_type']}\0{text_of(cell)}"
    return bool(made_of) and hashlib.sha256(text.encode()).hexdigest()[:12] == made_of[1]


# ------------------------------------------------------------------------------------------- cell by cell


@dataclass
class Found:
    """What became of the cells of a student."""

    answers: int = 0
    own: int = 0
    edited: int = 0


def carried(mine: dict, new: dict, base: list[dict] | None) -> tuple[dict, list[str]]:
    """The new notebook with the student's text; and what is to be said. `base`: the cells it was copied from."""
    known = {key(cell): cell for cell in [*new["cells"], *(base or ())]}
    theirs = recognised(mine["cells"], known)
    my: dict[str, list[dict]] = {}
    for cell in theirs:
        my.setdefault(key(cell), []).append(cell)
    old = {key(cell): cell for cell in base or ()}
    found, said, cells = Found(), [], []
    beside = left_over(theirs, {key(cell) for cell in new["cells"]}, old, found, said)
    cells += beside.get(None, [])
    for cell in new["cells"]:
        *before, last = written(my.get(key(cell), []), cell, old.get(key(cell), cell)) or [None]
        cells += halves(cell, before, found, said) if is_answer(cell) else []
        cells += placed(cell, last, old.get(key(cell)), found, said)
        cells += beside.get(key(cell), [])
    counts = {"answer": found.answers, "cell of your own": found.own, "cell that you had edited": found.edited}
    told = ", ".join(many(number, what) for what, number in counts.items() if number) or "nothing, there was nothing"
    if base is None:
        said.insert(0, "Nobody knows from which version yours was copied: compare its empty cells with the new ones.")
    return {**new, "cells": unique(cells)}, [f"Carried over: {told}.", *said]


def recognised(cells: list[dict], known: dict[str, dict]) -> list[dict]:
    """A student's cells, each with an id: that of the lesson's cell which is there by its text and not by its name."""
    there = {key(cell) for cell in cells}
    missing: dict[tuple[str, str], list[str]] = {}
    for name in known:
        if name not in there:
            missing.setdefault(kind_and_text(known[name]), []).append(name)
    found = []
    for cell in cells:
        names = missing.get(kind_and_text(cell)) if key(cell) not in known else None
        found.append({"id": "own", **cell, **({"id": names.pop(0)} if names else {})})
    return found


def kind_and_text(cell: dict) -> tuple[str, str]:
    return cell["cell_type"], bare(cell)


def written(copies: list[dict], *empty: dict) -> list[dict]:
    """Of cells with one name those in which something was written, or else the last one: of doubled cells grading takes
    the last that is not the empty one."""
    nothing = {"", *map(bare, empty)}
    return [cell for cell in copies if bare(cell) not in nothing] or copies[-1:]


def halves(cell: dict, before: list[dict], found: Found, said: list[str]) -> list[dict]:
    """A cell that was split keeps its name in both halves, and grading runs the first before the second."""
    if before:
        found.own += len(before)
        said.append(
            f"{key(cell)}: yours was there {len(before) + 1} times. What stood in the earlier ones is in cells of your "
            "own above the last one now."
        )
    code = {"outputs": [], "execution_count": None} if cell["cell_type"] == "code" else {}
    kind = {"cell_type": cell["cell_type"], "id": "half", "metadata": {}, **code}
    return [with_outputs({**kind, "source": one["source"]}, one) for one in before]


def placed(cell: dict, mine: dict | None, old: dict | None, found: Found, said: list[str]) -> list[dict]:
    """A cell of the new lesson, with what the student wrote there."""
    if mine is None or text_of(mine) == text_of(old or cell) or is_check(cell):
        same = mine is not None and text_of(mine) == text_of(cell)
        return [with_outputs(cell, mine) if same else cell]
    filled = with_outputs({**cell, "source": mine["source"]}, mine)
    if not is_answer(cell):
        found.edited += 1
        return [filled]
    found.answers += 1
    if old is None or text_of(old) == text_of(cell):
        return [filled]
    said.append(f"{key(cell)}: the empty cell is another one now. It stands below your answer: look at what differs.")
    fence = "python" if cell["cell_type"] == "code" else ""
    return [filled, note(f"**The lesson's new form of the cell above:**\n\n```{fence}\n{text_of(cell)}\n```")]


def left_over(
    cells: Iterable[dict], there: set[str], old: dict[str, dict], found: Found, said: list[str]
) -> dict[str | None, list[dict]]:
    """What the student has and the new lesson has not, by the cell of the new lesson that it stands behind."""
    kept: dict[str | None, list[dict]] = {}
    behind = None
    for cell in cells:
        name = key(cell)
        if name in there:
            behind = name
        elif name in old or OF_A_LESSON.fullmatch(name) or "nbgrader" in cell.get("metadata", {}):
            edited = text_of(cell) != text_of(old[name]) if name in old else not is_untouched(cell)
            if edited and text_of(cell).strip():
                said.append(f"{name}: the new lesson has no such cell. What you wrote there is kept as text.")
                kept.setdefault(behind, []).append(raw(cell))
        else:
            found.own += 1
            kept.setdefault(behind, []).append(cell)
    return kept


def key(cell: dict) -> str:
    return cell.get("metadata", {}).get("nbgrader", {}).get("grade_id") or str(cell.get("id", ""))


def text_of(cell: dict) -> str:
    return "".join(cell["source"])


def bare(cell: dict) -> str:
    return "".join(text_of(cell).split())


def is_answer(cell: dict) -> bool:
    return bool(cell.get("metadata", {}).get("nbgrader", {}).get("solution"))


def is_check(cell: dict) -> bool:
    marks = cell.get("metadata", {}).get("nbgrader", {})
    return bool(marks.get("grade")) and not marks.get("solution")


def with_outputs(cell: dict, mine: dict) -> dict:
    if cell["cell_type"] != "code" or mine["cell_type"] != "code":
        return cell
    return {**cell, "outputs": mine.get("outputs", []), "execution_count": mine.get("execution_count")}


def note(text: str) -> dict:
    return {"cell_type": "markdown", "id": "note", "metadata": {}, "source": text}


def raw(cell: dict) -> dict:
    """Text that nothing runs: as code it would become part of the submission."""
    return {"cell_type": "raw", "id": cell.get("id", "raw"), "metadata": {}, "source": cell["source"]}


def unique(cells: list[dict]) -> list[dict]:
    """Each id once, as nbformat asks."""
    seen: set[str] = set()
    for cell in cells:
        others = (f"{cell['id'][:56]}-{number}" for number in itertools.count(1))
        cell["id"] = next(name for name in itertools.chain([cell["id"]], others) if name not in seen)
        seen.add(cell["id"])
    return cells
