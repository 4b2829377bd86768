"""What grading costs: the solved lesson 01 through the referee, exercise by exercise, with a cold Triton cache.

Timing windows are apart: they take what a stated precision takes. The referee's own share is everything but the
seconds in which the submission's code was compiled or running. Runs with or without a GPU.
"""

import copy
import time

import nbformat

from autograder import exercise as exercises
from autograder.classroom.verdicts import asked_by, imported_by, is_check
from autograder.referee.referee import Referee
from autograder.referee.submission import extract
from course_lib.results import ROOT

LESSON = "01_roofline/roofline.ipynb"
MEASURES = (
    *(f"autograder/referee/{name}.py" for name in ("referee", "replay", "lanes", "room", "audit", "clock")),
    *(f"autograder/inside/{name}.py" for name in ("worker", "recording", "playing", "kernels", "watch")),
)


def run() -> list[dict]:
    """One row an exercise, one for starting the sandbox, one for their sum, and one for all side by side."""
    release, solved, asked = _lesson()
    return [*_in_turn(release, solved, asked), *_side_by_side(release, solved, dict.fromkeys(asked))]


def in_turn() -> list[dict]:
    """Without the last row."""
    return _in_turn(*_lesson())


def _lesson():
    release = nbformat.read(ROOT / "notebooks" / LESSON, as_version=4)
    solved = nbformat.read(ROOT / "solutions" / LESSON, as_version=4)
    return release, _handed_in(release, solved), [a for a in map(asked_by, filter(is_check, release.cells)) if a]


def _handed_in(release, solved):
    """The release with the answers in it. Predictions have other ids in the solved one, and would run as cells of one's
    own, with what they measure."""
    answers = {cell.metadata.nbgrader.grade_id: cell.source for cell in solved.cells if _is_answer(cell)}
    handed_in = copy.deepcopy(release)
    for cell in filter(_is_answer, handed_in.cells):
        cell.source = answers[cell.metadata.nbgrader.grade_id]
    return handed_in


def _is_answer(cell) -> bool:
    return cell.metadata.get("nbgrader", {}).get("solution", False)


def _in_turn(release, solved, asked) -> list[dict]:
    began = time.perf_counter()
    with Referee(extract(release, solved), imported_by(release)) as referee:
        referee.room.ready()
        rows = [{"name": "start of the sandbox", "seconds": time.perf_counter() - began}]
        for name in dict.fromkeys(a.name for a in asked):
            rows.append(_row(referee, name, any(a.speed for a in asked if a.name == name)))
    parts = ("seconds", "code_s", "own_s", "timing_s")
    total = {part: sum(row.get(part, 0.0) for row in rows) for part in parts}
    return [*rows, {"name": "one after the other", **total}]


def _side_by_side(release, solved, asked) -> list[dict]:
    """The whole submission as nbgrader has it graded: several exercises at once, where the machine has room."""
    began = time.perf_counter()
    with Referee(extract(release, solved), imported_by(release)) as referee:
        names = dict.fromkeys(a.name for a in asked)
        referee.examine_ahead(map(exercises.get, names), 1)
        ahead = len(referee.verdicts)
        points = sum(referee.examine(exercises.get(name), 1).points for name in names)
        took = time.perf_counter() - began
    return [{"name": "as graded, sandbox included", "seconds": took, "points": points, "judged_ahead": ahead}]


def _row(referee: Referee, name: str, timed: bool) -> dict:
    exercise, start, before = exercises.get(name), time.perf_counter(), referee.room.code_s
    verdict = referee.examine(exercise, 1)
    examined, code_s = time.perf_counter(), referee.room.code_s - before
    speed = referee.examine_speed(exercise, 1) if timed else None
    took = examined - start
    return {
        "name": name,
        "seconds": took,
        "code_s": code_s,
        "own_s": took - code_s,
        "timing_s": time.perf_counter() - examined,
        "points": None if verdict.pending else verdict.points,
        "speed_points": None if speed is None or speed.pending else speed.points,
        "timed": timed,
        "note": " ".join(filter(None, (verdict.note, speed.note if speed else ""))),
    }
