"""`python -m autograder try my.ipynb`: a student's rehearsal of grading.

The notebook goes the way of a submission: repaired on the release, its code taken out, each exercise judged in a
process of its own in the sandbox. Only the inputs differ: all rehearsals draw the same, so that a result can be
repeated.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograder import exercise
from autograder.call.in_process import examine
from autograder.classroom import limited
from autograder.classroom.report import TIERS
from autograder.classroom.verdicts import Asked, asked_by, imported_by, is_check, stored
from autograder.inside.cells import run_cells
from autograder.judging.judge import no_speed
from autograder.referee import sandbox
from autograder.referee.referee import Referee
from autograder.referee.room import TooBusy
from autograder.referee.submission import Submission, endless, extract, release_of_cells, visible
from course_lib import device
from course_lib.places import RELEASES

PUBLIC_SEED = 20  # grading draws another one, which nobody knows before
FULL, NOT_FULL, NOT_TRIED = 0, 1, 2  # exit status
UNPROTECTED = "judged without a sandbox: not a grade"
WARNING = """
!!! WITHOUT A SANDBOX. The code of this notebook now runs with your own rights: it can read, change and delete
!!! whatever you can. Do this only with a notebook that you wrote yourself. What follows is no grade.
"""


class CannotTry(Exception):
    """There is nothing to judge, or no way to judge it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("notebook", type=Path, help="your notebook, for example work/00_start/start.ipynb")
    parser.add_argument("--lesson", help="its lesson, for example 00_start, where its name does not tell")
    parser.add_argument("--seed", type=int, default=PUBLIC_SEED, help="that of an appeal: grading drew from it")
    parser.add_argument(
        "--unsafe-no-sandbox", action="store_true", help="run your own code unprotected, where there is no bubblewrap"
    )


def main(args: argparse.Namespace) -> int:
    try:
        written = read(args.notebook)
        release = nbformat.read(release_for(args.notebook, args.lesson, written), as_version=4)
        submission = extract(release, written)
        if args.unsafe_no_sandbox:
            print(WARNING, file=sys.stderr, flush=True)
        else:
            require_sandbox()
        submission = replace(submission, notes=(*written["notes"], *submission.notes))
        found = rows(submission, release, args.unsafe_no_sandbox, args.seed)
        status = told(args.notebook, submission, found, args.seed)
        print(*in_words(release, written), sep="\n", end="", flush=True)
        return status
    except CannotTry as why:
        print(f"{args.notebook}: {why}", file=sys.stderr)
        return NOT_TRIED


def release_for(notebook: Path, lesson: str | None, written: dict) -> Path:
    """The released notebook that this one came from."""
    every = sorted(RELEASES.glob("*/*.ipynb"))
    found = [path for path in every if lesson in (None, path.parent.name)]
    chosen = [path for path in found if path.name == notebook.name] or (found if lesson else [])
    of_cells = release_of_cells(written["cells"], [*chosen, *every])
    if of_cells in found:  # grading takes it under any name, in the folder of its lesson
        return of_cells
    if of_cells:
        raise CannotTry(f"it is the notebook of {of_cells.parent.name}, and this lesson is {lesson}")
    if len(chosen) == 1:
        return chosen[0]
    known = ", ".join(path.parent.name for path in every)
    raise CannotTry(f"which lesson is this? Say --lesson and one of: {known}")


def read(notebook: Path) -> dict:
    """Its cells, read as grading reads them."""
    try:
        with notebook.open("rb") as file:
            return limited.taken_apart(file.fileno())
    except OSError as error:
        raise CannotTry(f"cannot be opened: {error.strerror}") from error
    except subprocess.TimeoutExpired as late:
        raise CannotTry(f"this machine did not read it in {late.timeout:g} s; try again") from late
    except limited.Unread as why:
        raise CannotTry(
            f"is no notebook that can be read: {why}. Grading cannot read it either: open it in JupyterLab and save "
            "it again, or copy your answers into a fresh copy of the lesson"
        ) from why


def require_sandbox() -> None:
    try:
        sandbox.require()
    except sandbox.NoSandbox as error:
        raise CannotTry(f"{error}. To run your own code unprotected all the same: --unsafe-no-sandbox") from error


@dataclass(frozen=True)
class Row:
    """What is said about one check cell."""

    points: float
    out_of: float
    pending: bool
    text: list[str]
    endless: list[str]

    @classmethod
    def of(cls, kept: dict) -> Row:
        return cls(kept["points"], kept["out_of"], kept["pending"], kept["text"], kept["endless"])


def rows(submission: Submission, release: NotebookNode, unsafe: bool, seed: int = PUBLIC_SEED) -> Iterator[Row]:
    """One for each check cell of the release."""
    asked = [a for a in map(asked_by, filter(is_check, release.cells)) if a]
    if unsafe:
        yield from (unprotected(submission, one, seed) for one in asked)
        return
    with Referee(submission, imported_by(release)) as referee:
        for one in asked:
            examine_it = referee.examine_speed if one.speed else referee.examine
            try:
                yield Row.of(stored(examine_it(exercise.get(one.name), seed)))
            except TooBusy as error:
                raise CannotTry(f"{error}, which other programs had. Try again") from error


def told(notebook: Path, submission: Submission, found: Iterator[Row], seed: int = PUBLIC_SEED) -> int:
    """Print what was put right and every verdict as it comes."""
    print(f"{notebook}: a rehearsal on {TIERS[device.TIER]}, seed {seed}", flush=True)
    for note in submission.notes:
        print(f"  put right: {visible(note)}")
    status, points, out_of, endless = FULL, 0.0, 0.0, {}
    for row in found:
        first, *rest = row.text
        mark = "waits" if row.pending else f"{row.points:g}/{row.out_of:g}"
        print(f"{mark:>7}  {visible(first)}", flush=True)
        points, out_of = points + row.points * (not row.pending), out_of + row.out_of * (not row.pending)
        if not row.pending and row.points < row.out_of:
            status = NOT_FULL
            for line in rest:
                print(f"{'':9}{visible(line)}", flush=True)
        endless |= dict.fromkeys(row.endless)
    print(*(f"{'':9}{visible(line)}\n" for line in endless), sep="", end="")
    print(f"{points:g}/{out_of:g}".rjust(7), " of what was judged here", flush=True)
    return status


def in_words(release: NotebookNode, written: dict) -> Iterator[str]:
    """What a person will mark: how many answers in words, and which are still empty."""
    there = {_grade_id(cell): "".join(cell["source"]) for cell in written["cells"]}
    asked = [c for c in release.cells if c.cell_type == "markdown" and c.metadata.get("nbgrader", {}).get("grade")]
    empty = [_grade_id(c) for c in asked if there.get(_grade_id(c), c.source).strip() == c.source.strip()]
    if asked:
        points = sum(cell.metadata.nbgrader["points"] for cell in asked)
        yield f"{points:g}".rjust(7) + f"  points for {len(asked)} answers in words, which a person marks"
        yield f"{'':9}still empty: {', '.join(empty)}\n" if empty else ""


def _grade_id(cell: dict) -> str:
    marks = cell.get("metadata", {}).get("nbgrader")
    return str(marks.get("grade_id", "")) if isinstance(marks, dict) else ""


# --------------------------------------------------------------------------------- without a sandbox

PATIENCE_S, CELLS_S = 120.0, 60.0  # with everything, and with the cells of the notebook


def unprotected(submission: Submission, asked: Asked, seed: int) -> Row:
    """Judge in a process forked from this one: a crash is a verdict, and nothing else is prevented."""
    wanted = exercise.get(asked.name)
    if asked.speed:
        return Row.of(stored(no_speed(wanted, device.TIER)))
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    process = fork.Process(target=_judge_here, args=(there, submission, wanted, seed))
    process.start()
    there.close()
    kept = {"points": 0.0, "out_of": wanted.points, "pending": False, "endless": []}
    try:
        kept |= json.loads(here.recv_bytes()) if here.poll(PATIENCE_S) else {"text": [f"no end in {PATIENCE_S:g} s"]}
    except EOFError:
        kept["text"] = ["the process ended"]
    process.kill()
    process.join()
    first, *rest = kept["text"]
    return Row.of(kept | {"text": [f"{wanted.name}, {UNPROTECTED}: {first}", *rest]})


def _judge_here(pipe, submission: Submission, wanted, seed: int) -> None:
    names, troubles = run_cells(
        [(cell.name, cell.source) for cell in submission.cells], CELLS_S, submission.settled(wanted.entry)
    )
    if wanted.entry in names:
        said = stored(examine(wanted, names[wanted.entry], seed, live=True))
    else:
        said = {"text": [submission.missing(wanted.entry, troubles)]}
    said["endless"] = [told for one in troubles if (told := endless(one))]
    pipe.send_bytes(json.dumps(said).encode())
