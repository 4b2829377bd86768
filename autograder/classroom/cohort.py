"""One run of `nbgrader autograde` over a cohort: what must be so before it begins, and how far it is.

nbgrader skips a submission whose folder in `autograded/` exists, also when the run that made the folder was killed
before the marks were there; and it loses the submissions of one run when a second one works on the same gradebook.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TextIO

import nbformat
from nbgrader.utils import is_grade, is_solution

from autograder.classroom import handed_in
from autograder.referee import sandbox

REFUSED = "nbgrader autograde: refused. {}"


progress: Progress | None = None  # of the run in this process, when `begin` has begun one


def begin(course: Path, words: list[str]) -> None:
    """Before any submission is touched. Whatever is wrong ends the command: stock nbgrader must not take over."""
    global progress
    try:
        sandbox.require()
        only_one(course / "verdicts" / ".grading")
    except (sandbox.NoSandbox, OSError) as error:
        raise SystemExit(REFUSED.format(error)) from error
    lesson = next((w for w in words[1:] if (course / "notebooks" / w).is_dir()), None) or _named(words, "assignment")
    todo = submitted(course, lesson, _named(words, "student")) if lesson else []
    for path in todo:
        drop_unfinished(course, path, lesson)
        handed_in.prepare(path, course / "notebooks" / lesson)
    if "--force" not in words:
        todo = [path for path in todo if not _graded(course, path, lesson).exists()]
    notebooks = len(list((course / "notebooks" / lesson).glob("*.ipynb"))) if lesson else 1
    progress = Progress(len(todo) * notebooks)


_held: dict[Path, TextIO] = {}  # locks of this process; the kernel lets go of them when it ends, however it ends


def only_one(lock: Path) -> None:
    """Hold the lock for as long as this process lives; OSError when another one holds it or it cannot be written."""
    if lock in _held:  # nbgrader reads its settings more than once
        return
    lock.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(lock.parent, os.W_OK):
        raise PermissionError(f"{lock.parent} cannot be written")
    file = lock.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        other = f"process {file.read().strip()}"
        file.close()
        raise BlockingIOError(f"Another run ({other}) grades into this gradebook; begin when it ended.") from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    _held[lock] = file


def submitted(course: Path, lesson: str, student: str | None) -> list[Path]:
    return sorted(path for path in (course / "submitted").glob(f"{student or '*'}/{lesson}") if path.is_dir())


def drop_unfinished(course: Path, submission: Path, lesson: str) -> None:
    """What a killed run left of a submission goes, so that nbgrader grades it again."""
    graded = _graded(course, submission, lesson)
    expected = [p.name for p in (course / "notebooks" / lesson).glob("*.ipynb") if (submission / p.name).exists()]
    if graded.exists() and not all(is_finished(graded / name) for name in expected):
        shutil.rmtree(graded)


def is_finished(notebook: Path) -> bool:
    """Whether every check cell has its verdict: that is written last, after the gradebook."""
    try:
        cells = nbformat.read(notebook, as_version=4).cells
    except Exception:
        return False
    return all(c.outputs for c in cells if c.cell_type == "code" and is_grade(c) and not is_solution(c))


def _graded(course: Path, submission: Path, lesson: str) -> Path:
    return course / "autograded" / submission.parent.name / lesson


def _named(words: list[str], option: str) -> str | None:
    """The value of `--option=value` or `--option value`."""
    for word, after in zip(words, [*words[1:], ""]):
        if word == f"--{option}":
            return after
        if word.startswith(f"--{option}="):
            return word.partition("=")[2]
    return None


class Progress:
    """How far the cohort is: one plain line a notebook, for a terminal and for a log."""

    def __init__(self, total: int, to: TextIO | None = None):
        self.total, self.done, self.to, self.since = total, 0, to or sys.stderr, time.monotonic()

    def step(self, student: str, verdicts: list[dict]) -> None:
        """One notebook more has its verdicts, as verdict files hold them."""
        self.done += 1
        print(self.line(student, verdicts, time.monotonic() - self.since), file=self.to, flush=True)

    def line(self, student: str, verdicts: list[dict], passed_s: float) -> str:
        points = sum(v["points"] for v in verdicts)
        pending = sum(v["out_of"] for v in verdicts if v["pending"])
        out_of = sum(v["out_of"] for v in verdicts) - pending
        total = max(self.total, self.done)
        bar = ("#" * round(20 * self.done / total)).ljust(20, ".")
        left = passed_s / self.done * (total - self.done)
        waits = f", {pending:g} more wait" if pending else ""
        end = f"{left:.0f} s left" if total > self.done else f"{passed_s:.0f} s in all"
        return f"[{bar}] {self.done}/{total} {student}: {points:g} of {out_of:g} points{waits}; {end}"
