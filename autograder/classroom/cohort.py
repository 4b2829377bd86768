"""One run of `nbgrader autograde` over a cohort: what must be so before it begins, and how far it is.

nbgrader skips a submission whose folder in `autograded/` exists, also when the run that made the folder was killed
before the marks were there; and it loses the submissions of one run when a second one works on the same gradebook.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbgrader.api import Gradebook
from nbgrader.apps import NbGrader
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import is_grade, is_solution

from autograder.classroom import handed_in, roster
from autograder.classroom.counted import many
from autograder.judging.verdict import for_speed
from autograder.referee.submission import OWN
from course_lib.places import HOME

progress: Progress | None = None  # of the run in this process
Row = tuple[str, float, float, bool]  # an exercise, its points in the gradebook, of how many, whether they wait


def begin(coursedir: CourseDirectory, taken: str, force: bool) -> tuple[list[str], list[str]]:
    """Read what was handed in and waits to be graded; nbgrader then finds it in the folder `taken`. Returned are the
    students who wait, and those whose marks stay as they are."""
    close_to_others(coursedir)
    lesson, releases = coursedir.assignment_id, released(coursedir)
    todo, stay, other = [], [], []
    found = taken_in(coursedir, taken)
    everywhere = Path(coursedir.format_path(coursedir.submitted_directory, "*", lesson)).parent
    folders = [Path(path).name for path in glob.glob(str(everywhere))]
    with Gradebook(coursedir.db_url, coursedir.course_id) as book:
        for line in [*roster.alike(found), *roster.strangers(found, book), *roster.left_over(folders, book)]:
            print(line, file=sys.stderr)
    for student, submission in found.items():
        graded = Path(coursedir.format_path(coursedir.autograded_directory, student, lesson))
        drop_unfinished(graded, releases)
        waits = force or not graded.exists() or _stamp(graded) != handed_in.stamp_of(submission)
        there = Path(coursedir.format_path(taken, student, lesson))
        if waits:
            todo.append(student)
            if (before := _stamp(graded)) and not handed_in.stamp_of(submission):
                print(f"{student}: without {handed_in.STAMP}, so the earlier time stays: {before}", file=sys.stderr)
            for note in (one for path in sorted(there.glob("*.ipynb")) for one in handed_in.odd(path)):
                print(f"{student}: {note}", file=sys.stderr)
        else:
            stay.append(student)
            if any(_own(graded / name) != _own(there / name) for name in notebooks(releases)):
                other.append(student)
    if other:
        print(f"What was graded is not what lies there now: {', '.join(other)}", file=sys.stderr)
        again = f"nbgrader autograde {lesson} --force"
        print(
            f"To grade one of them: {again} --student={shlex.quote(other[0])}. To grade everybody: {again}",
            file=sys.stderr,
        )
    return todo, stay


def follow(coursedir: CourseDirectory, students: int) -> None:
    """From here on each notebook that has its marks is told in a line."""
    global progress
    progress = Progress(students * len(notebooks(released(coursedir))))


def released(coursedir: CourseDirectory) -> Path:
    """The folder of what was released of this lesson."""
    return Path(coursedir.format_path(coursedir.release_directory, ".", coursedir.assignment_id))


def notebooks(releases: Path) -> list[str]:
    return sorted(path.name for path in releases.glob("*.ipynb"))


def taken_in(coursedir: CourseDirectory, taken: str) -> dict[str, Path]:
    """Student -> what was handed in for this lesson, after all of it was read into the folder `taken`."""
    lesson, releases = coursedir.assignment_id, released(coursedir)
    with in_turn(Path(coursedir.root) / "verdicts" / ".reading"):
        found = submitted(coursedir, coursedir.submitted_directory, releases)
        for gone in submitted(coursedir, taken, releases).keys() - found.keys():
            shutil.rmtree(Path(coursedir.format_path(taken, gone, lesson)))
        for student, submission in found.items():
            if said := handed_in.put_aside_bad_stamp(submission):
                print(f"{student}: {said}", file=sys.stderr)
            there = Path(coursedir.format_path(taken, student, lesson))
            if not handed_in.is_current(submission, releases, there):
                handed_in.take(submission, releases, there)
    return found


def course(lesson: str) -> CourseDirectory:
    """The folders of this course, as nbgrader's settings have them."""
    with contextlib.chdir(HOME):
        app = NbGrader()
        app.load_config_file()
    return CourseDirectory(config=app.config, assignment_id=lesson, root=str(HOME))


def gradebook(lesson: str) -> Gradebook | None:
    """None where there is none yet; to open it would make one."""
    url = course(lesson).db_url
    there = not url.startswith("sqlite:///") or Path(url.removeprefix("sqlite:///")).exists()
    return Gradebook(url) if there else None


def close_to_others(coursedir: CourseDirectory) -> None:
    """What a person copied in, a checkout has open, or an earlier version left so; the settings keep closed what is
    made from now on. The rest of an open course is named and stays: who else works in it is not known here."""
    if coursedir.groupshared:
        return
    for room in ("verdicts", "gradebook.db", "submitted", "autograded", "feedback", coursedir.source_directory):
        path = Path(coursedir.root) / room
        with contextlib.suppress(OSError):
            path.chmod(path.stat().st_mode & 0o7700)
    print(open_to_others(Path(coursedir.root)), end="", file=sys.stderr)


def open_to_others(course: Path) -> str:
    """What is to be said where others can enter the course: answers lie in .git, the bank and the kernels too."""
    folders = [course.resolve(), *course.resolve().parents]
    if not all(folder.stat().st_mode & 0o001 for folder in folders):
        return ""
    close = f"chmod 700 {shlex.quote(str(course))}"
    return f"Other users of this machine can enter this course and read its answers. To close it: {close}\n"


@contextlib.contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Hold the lock; OSError when another process holds it or it cannot be written. The kernel lets go of it when this
    process ends, however it ends."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(lock.parent, os.W_OK):
        raise PermissionError(f"{lock.parent} cannot be written")
    with lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            other = f"process {file.read().strip()}"
            raise BlockingIOError(f"Another run ({other}) grades into this gradebook; begin when it ended.") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextlib.contextmanager
def in_turn(lock: Path) -> Iterator[None]:
    """Hold the lock, after whoever holds it: autograde and a fleet may begin at the same time."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def submitted(coursedir: CourseDirectory, step: str, releases: Path) -> dict[str, Path]:
    """Student -> whatever lies where a submission should: a folder, or a link or a file in its place."""
    found = {}
    for path in map(Path, glob.glob(coursedir.format_path(step, coursedir.student_id, releases.name))):
        if not roster.why_not(path.parent.name, ()):
            found[path.parent.name] = path
        else:  # such as half of a letter, which stands for a byte that is not UTF-8
            print(f"{path.parent.name!a} cannot be the name of a student, so it is not graded", file=sys.stderr)
    return dict(sorted(found.items()))


def drop_unfinished(graded: Path, releases: Path) -> None:
    """What a killed run left of a submission goes, so that nbgrader grades it again."""
    if graded.exists() and not all(is_finished(graded / name) for name in notebooks(releases)):
        shutil.rmtree(graded)


def is_finished(notebook: Path) -> bool:
    """Whether every check cell has its verdict: that is written last, after the gradebook."""
    try:
        cells = nbformat.read(notebook, as_version=4).cells
    except Exception:
        return False
    return all(c.outputs for c in cells if c.cell_type == "code" and is_grade(c) and not is_solution(c))


def is_as_graded(coursedir: CourseDirectory, taken: str, student: str) -> bool:
    """Whether what was read last is what the marks are for: of the same time, with the same answers and own cells."""
    steps = coursedir.autograded_directory, taken
    graded, there = (Path(coursedir.format_path(step, student, coursedir.assignment_id)) for step in steps)
    return _stamp(graded) == _stamp(there) and all(
        is_finished(graded / name) and _own(graded / name) == _own(there / name)
        for name in notebooks(released(coursedir))
    )


def _stamp(graded: Path) -> str:
    path = graded / handed_in.STAMP
    return path.read_text() if path.exists() else ""


def _own(notebook: Path) -> list[str]:
    """What is the student's own in a notebook that was written here: answers, and cells beside them."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    mine = [c for c in cells if c["metadata"].get(OWN) or c["metadata"].get("nbgrader", {}).get("solution")]
    return ["".join(cell["source"]) for cell in mine]


class Progress:
    """How far the cohort is: one plain line a notebook, for a terminal and for a log."""

    def __init__(self, total: int):
        self.total, self.done, self.since = total, 0, time.monotonic()

    def step(self, student: str, rows: list[Row]) -> None:
        """One notebook more has its marks."""
        self.done += 1
        print(self.line(student, rows, time.monotonic() - self.since), file=sys.stderr, flush=True)

    def line(self, student: str, rows: list[Row], passed_s: float) -> str:
        points, out_of = sum(got for _, got, _, _ in rows), sum(most for _, _, most, _ in rows)
        waiting = [name for name, _, _, waits in rows if waits and not for_speed(name)]
        speed = sum(waits and for_speed(name) for name, _, _, waits in rows)
        waiting += [f"{speed} for speed"] if speed else []
        total = max(self.total, self.done)
        bar = ("#" * round(20 * self.done / total)).ljust(20, ".")
        left = passed_s / self.done * (total - self.done)
        waits = f"; these wait: {', '.join(waiting)}" if waiting else ""
        end = f"{left:.0f} s left" if total > self.done else f"{passed_s:.0f} s in all"
        return f"[{bar}] {self.done}/{total} {student}: {points:g} of {many(out_of, 'point')}{waits}; {end}"
