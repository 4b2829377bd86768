"""What was handed in becomes a folder that nbgrader may read: one notebook of the lesson's name, written here.

nbgrader opens nothing that a student handed in, and nothing there is changed: whatever its name, its size, its form, it
stays as it came. `take` reads it once. In place of what cannot be read the empty release is written, with the reason,
and a person decides.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import re
import shutil
import stat
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dateutil.tz import gettz

from autograder.classroom import limited
from autograder.classroom.limited import Unread
from autograder.referee.submission import extract, visible
from course_lib.meaning import meaning

ROOT = Path(__file__).resolve().parents[2]
READ_BY = [ROOT / "autograder" / name for name in ("classroom/handed_in.py", "classroom/limited.py")]
READ_BY += [ROOT / "autograder/referee" / name for name in ("submission.py", "source.py")]
NOTES = "speed_of_light_notes"  # in a notebook's metadata: what was put right
CODE = "speed_of_light_code"  # there: what is run of it, as `Submission.as_data` gives it
PERSON = "speed_of_light_person"  # there: why nothing of it can be judged and a person decides, or ""
SEEN = "speed_of_light_seen"  # there: a hash of what lay in the folder when it was read
# In years far from these a time of another zone is no time, and formgrader's pages end there.
YEARS = range(2000, 2100)
STAMP = "timestamp.txt"
STAMPED = re.compile(
    r"(?P<at>\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)"
    r"(?: ?(?:UTC|Z|(?P<offset>[+-]\d\d:?\d\d))| (?P<place>[A-Z][\w+-]*(?:/[A-Z][\w+-]*)+))?",
    re.ASCII,
)
SECRET = "submission_secret.txt"
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
NAMED = 20  # names of files that a report lists, at most


def take(submission: Path, releases: Path, to: Path) -> None:
    """Make the folder `to`, wholly or not at all. Whatever is wrong with a submission costs that one, and is told."""
    new, old = to.with_name(f".{to.name}.new"), to.with_name(f".{to.name}.old")
    _remove(new)
    _remove(old)
    new.mkdir(parents=True)
    with _opened(submission) as folder:
        if stamp := _stamp(folder):
            (new / STAMP).write_text(stamp)
        for release in sorted(releases.glob("*.ipynb")):
            notebook = _taken(folder, release)
            notebook["metadata"][SEEN] = _seen(folder, release)
            (new / release.name).write_text(json.dumps(notebook), encoding="utf-8")
    if to.exists():
        os.rename(to, old)  # a folder is removed in many steps, and between them it would be there in part
    os.rename(new, to)
    _remove(old)


def is_current(submission: Path, releases: Path, to: Path) -> bool:
    """Whether `take` would write what lies there: the files, the release and the code that reads them are as before."""
    with _opened(submission) as folder:
        for release in releases.glob("*.ipynb"):
            try:
                taken = json.loads((to / release.name).read_text(encoding="utf-8"))
                if taken["metadata"][SEEN] != _seen(folder, release):
                    return False
            except (OSError, ValueError, KeyError, TypeError):
                return False
    return to.is_dir()


def odd(taken: Path) -> list[str]:
    """Of a notebook that `take` wrote: what was noted of the hand-in as a whole, and not of its cells."""
    metadata = json.loads(taken.read_text(encoding="utf-8"))["metadata"]
    of_cells = set(map(visible, metadata[CODE]["notes"]))
    return [note for note in metadata[NOTES] if note not in of_cells]


def stamp_of(submission: Path) -> str:
    """When it was handed in, as its timestamp says; '' where there is none that can be read."""
    with _opened(submission) as folder:
        return _stamp(folder)


def time_of(submission: Path) -> datetime | None:
    """The same as the gradebook keeps it."""
    stamp = stamp_of(submission)
    return in_utc(stamp) if stamp else None


def in_utc(text: str) -> datetime:
    """A time as the gradebook keeps it; ValueError where the text can be read in two ways. 05.12.2026 is in May for
    some readers, a bare day begins at 0:00, and nbgrader's own reader takes +0100 for 100 seconds and PST for UTC."""
    found = STAMPED.fullmatch(text)
    if not found:
        raise ValueError(f"{text!a} is no time")
    read = datetime.fromisoformat(found["at"] + (found["offset"] or ""))
    zone = gettz(found["place"]) if found["place"] else read.tzinfo or UTC
    if zone is None or read.year not in YEARS:
        raise ValueError(f"{text!a} is no time")
    return read.replace(tzinfo=zone).astimezone(UTC).replace(tzinfo=None)


def secret_of(submission: Path) -> str:
    """What `nbgrader submit` puts beside a notebook: who knows it finds the feedback. '' where there is none."""
    with _opened(submission) as folder:
        secret = _beginning(folder, SECRET)
    return secret if re.fullmatch(r"[0-9a-f]{128}", secret) else ""


def put_aside_bad_stamp(submission: Path) -> str:
    """A timestamp that is none gets another name, so that nothing that reads timestamps meets it. Returns what is to be
    said of it, or ""."""
    with _opened(submission) as folder, contextlib.suppress(OSError):
        if STAMP in folder.names and not _stamp(folder):
            number = next(n for n in itertools.count() if f"{STAMP}.{n}" not in folder.names)
            says = ascii(_beginning(folder, STAMP)[:60])
            os.rename(STAMP, f"{STAMP}.{number}", src_dir_fd=folder.number, dst_dir_fd=folder.number)
            return (
                f"{STAMP} says {says}, which is no time: it is {STAMP}.{number} now, and the hand-in has no time. "
                "Write one as 2026-12-01 23:59 +0100; without a zone it is UTC."
            )
    return ""


def kind(path: Path) -> str:
    """What lies there, in words: "a folder", "a link"."""
    return _kind(None, str(path))


def _seen(folder: Folder, release: Path) -> str:
    """Changes with each file's name, size and times, with the release, and with the code that reads."""
    found: list = [folder.why_not, release.read_text(encoding="utf-8"), _reading()]
    for name in folder.names:
        with contextlib.suppress(OSError):
            about = os.stat(name, dir_fd=folder.number, follow_symlinks=False)
            found.append([name, about.st_mode, about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino])
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:24]


@functools.cache
def _reading() -> str:
    return meaning(READ_BY)


# ------------------------------------------------------------------------------------------- one notebook


def _taken(folder: Folder, release: Path) -> dict:
    released = json.loads(release.read_text(encoding="utf-8"))
    person, chosen = "", ""
    try:
        if folder.why_not:
            raise Unread(folder.why_not)
        with _notebook(folder, release) as (file, chosen, said):
            try:
                read = limited.taken_apart(file, release)
            except Unread as why:
                raise Unread(f"{_shown(chosen)} was not graded: {why}.") from None
        said += read["notes"]
        notebook, code = read["notebook"], read["code"]
    except Exception as error:
        notebook, code, person = released, extract(released, released).as_data(), str(error)
        if not isinstance(error, Unread):
            print(visible(traceback.format_exc()), file=sys.stderr)
            person = f"It could not be looked at ({type(error).__name__}): a person should look."
        said = [person]
    said += _beside(folder, release, chosen)
    metadata = {**notebook["metadata"], NOTES: [visible(say) for say in said], CODE: code, PERSON: visible(person)}
    return {**notebook, "cells": [_whole(cell) for cell in notebook["cells"]], "metadata": metadata}


@contextlib.contextmanager
def _notebook(folder: Folder, release: Path) -> Iterator[tuple[int, str, list[str]]]:
    """The open file that stands for this release, its name, and what is to be said of it. Another name counts where it
    is the only one; of several, nobody can tell which. A zip counts where there is no notebook."""
    names = [name for name in folder.names if name.endswith(".ipynb") and not name.startswith(".")]
    files = [name for name in names if _kind(folder.number, name) == "a file"]
    others = [name for name in files if name != release.name and not (release.parent / name).exists()]
    zips = [n for n in folder.names if n.lower().endswith(".zip") and _kind(folder.number, n) == "a file"]
    said = []
    if release.name in files:
        chosen = release.name
    elif len(others) == 1:
        chosen = others[0]
        said.append(f"{_shown(chosen)} was taken for {release.name}.")
    elif others:
        listed = ", ".join(map(_shown, others[:NAMED]))
        raise Unread(f"None of {listed} is called {release.name}, so none was graded. Rename the one that counts.")
    elif len(zips) == 1:
        chosen = zips[0]
    elif zips:
        raise Unread(f"{len(zips)} zips were handed in ({', '.join(map(_shown, zips[:NAMED]))}), so none was graded.")
    else:
        raise Unread(f"No notebook was handed in. The folder held: {_listed(folder, folder.names) or 'nothing'}.")
    with _file(folder, chosen) as file:
        yield file, chosen, said


def _beside(folder: Folder, release: Path, chosen: str) -> list[str]:
    """What else was handed in: it is not shown with the notebook, and does nothing. Where none was chosen, the reason
    names what there is."""
    if not chosen:
        return []
    ours = {STAMP, SECRET, chosen, *(path.name for path in release.parent.iterdir())}
    others = [n for n in folder.names if n not in ours and not n.startswith((".", STAMP))]
    return [f"Also handed in, and not looked at: {_listed(folder, others)}."] if others else []


def _whole(cell: dict) -> dict:
    """As nbformat wants it."""
    if cell["cell_type"] == "code" and "outputs" not in cell:
        return {**cell, "outputs": [], "execution_count": None}
    return cell


# ------------------------------------------------------------------------------------------- files, never through links


@dataclass
class Folder:
    """The folder of a submission, reached through no link of a student's."""

    number: int = -1  # of the open folder
    names: tuple[str, ...] = ()
    why_not: str = ""  # it is not open


@contextlib.contextmanager
def _opened(submission: Path) -> Iterator[Folder]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.ExitStack() as held:
        try:
            student = os.open(submission.parent, flags)
            held.callback(os.close, student)
            if (kind := _kind(student, submission.name)) == "a folder":
                number = os.open(submission.name, flags, dir_fd=student)
                held.callback(os.close, number)
                found = Folder(number, tuple(sorted(os.listdir(number))))
            else:
                found = Folder(why_not=f"In place of a folder with a notebook, {kind} was handed in.")
        except OSError as error:
            linked = submission.parent.is_symlink()
            why = "the folder of this student is a link" if linked else error.strerror
            found = Folder(why_not=f"What was handed in could not be opened: {why}.")
        yield found


@contextlib.contextmanager
def _file(folder: Folder, name: str) -> Iterator[int]:
    """An open regular file; what is anything else by now is not opened, or not read."""
    try:
        file = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder.number
        )
    except OSError as error:
        raise Unread(f"{_shown(name)} could not be opened: {error.strerror}.") from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise Unread(f"{_shown(name)} is no file.")
        yield file
    finally:
        os.close(file)


def _stamp(folder: Folder) -> str:
    """The text of timestamp.txt, if it is a time."""
    text = _beginning(folder, STAMP)
    with contextlib.suppress(ValueError):
        in_utc(text)
        return text
    return ""


def _beginning(folder: Folder, name: str) -> str:
    """The text of a file of fewer than 200 bytes; '' where there is none."""
    if name in folder.names:
        with contextlib.suppress(Unread, OSError, ValueError), _file(folder, name) as file:
            if len(data := os.read(file, 200)) < 200:
                return data.decode().strip()
    return ""


def _kind(folder: int | None, name: str) -> str:
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError as error:
        return f"what cannot be opened ({error.strerror})"
    return "a file" if stat.S_ISREG(mode) else KINDS.get(stat.S_IFMT(mode), "no file")


def _listed(folder: Folder, names: Sequence[str]) -> str:
    shown = []
    for name in [name for name in names if name not in (STAMP, SECRET)][:NAMED]:
        kind = _kind(folder.number, name)
        shown.append(_shown(name) if kind == "a file" else f"{_shown(name)} ({kind})")
    more = [f"and {len(names) - NAMED} more"] if len(names) > NAMED else []
    return ", ".join([*shown, *more])


def _shown(name: str) -> str:
    """For reports and terminals: a file can be called anything."""
    return "".join(c if c.isprintable() else "?" for c in visible(name))[:80]


def _remove(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
