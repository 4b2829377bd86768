"""What a graded lesson's files say: one row for each graded cell of each student."""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import itemgetter

from autograder import exercise as exercises
from autograder.classroom import cohort, handed_in, taken
from autograder.classroom.marks import InBook, called, in_book, read_shown, shown_file
from autograder.classroom.taken import VERDICTS, Item
from autograder.classroom.verdicts import A_PERSON, Asked, asked_by, is_check, read, run_seed
from autograder.referee.source import parsed
from autograder.referee.submission import Submission


@dataclass(frozen=True)
class Answer:
    student: str
    name: str  # of the exercise, or of the cell of an answer in words
    kind: str  # "code", "speed" or "words"
    points: float  # a mark by hand where there is one
    out_of: float
    waits: str = ""  # for whom, or ""
    why: str = ""  # it waits
    tried: bool = True  # its cell is no longer the empty one
    mistake: str = ""
    seconds: float = 0.0  # that judging took
    share: float | None = None  # of the reachable speed, at the worst size
    machine: str = ""
    torch: str = ""
    source: str = ""  # of the last cell that defines what is asked for; "" where that is the one of the release
    board: bool = True  # may stand on the speed board
    endless: tuple[str, ...] = ()  # what is told of cells that waited or went on for ever

    @property
    def item(self) -> str:
        return str(Asked(self.name, self.kind == "speed"))


def gathered(lesson: str) -> tuple[list[Answer], list[str]]:
    """The answers in the order of the lesson, student after student; and who handed in but has no marks yet."""
    book, found, ungraded = in_book(cohort.gradebook(lesson), lesson), [], []
    for item in taken.items(lesson):
        shown = read_shown(shown_file(item.student, lesson, item.notebook, VERDICTS))
        if not shown:
            ungraded.append(item.student)
            continue
        code, board = item.code(), item.on_board()
        for cell in taken.released(lesson, item.notebook).cells:
            about = cell.metadata.get("nbgrader", {})
            if about.get("grade") and about["grade_id"] in shown:
                marks = book.get((item.student, item.notebook, about["grade_id"]))
                found.append(replace(_answer(item, cell, shown[about["grade_id"]], marks, code), board=board))
    return found, sorted(set(ungraded))


def odd(lesson: str, found: Iterable[Answer]) -> list[tuple[str, str]]:
    """Student, and what is to be said of a hand-in as a whole: another lesson's notebook, several, a zip, a cell that
    does not end."""
    said = [(item.student, note) for item in taken.items(lesson) for note in handed_in.odd(item.path)]
    said += [(one.student, note) for one in found for note in one.endless]
    return sorted(dict.fromkeys(said), key=itemgetter(0))


def _answer(item: Item, cell, shown: dict, marks: InBook | None, code: Submission | None) -> Answer:
    asked = asked_by(cell) if is_check(cell) else None
    given = {"student": item.student, "out_of": float(cell.metadata.nbgrader["points"])}
    given["points"] = float(marks.points if marks else shown["points"] or 0.0)
    # what was shown is of the last run, and since then a person may have decided
    waits = marks is None or marks.waits
    given["waits"] = (A_PERSON if shown["asks"] else shown["waits"]) if waits else ""
    given["why"] = (shown["asks"] or shown.get("why", "")) if waits else ""
    if asked is None:
        # nbgrader gives 0 at once for an answer in words that nobody wrote
        return Answer(name=called(cell), kind="words", tried=shown["points"] != 0.0, **given)
    verdict = (read(VERDICTS / shown["verdict"]) if shown.get("verdict") else None) or {}
    entry = exercises.get(asked.name).entry
    given["why"] = given["why"] or (verdict["text"][0] if given["waits"] and verdict.get("text") else "")
    source = definition(entry, [one.source for one in code.cells] if code else ())
    return Answer(
        name=asked.name,
        kind="speed" if asked.speed else "code",
        tried=code is not None and entry not in code.untouched,
        mistake=verdict.get("mistake", ""),
        seconds=verdict.get("seconds", 0.0),
        share=verdict.get("share"),
        machine=verdict.get("machine", {}).get("name", ""),
        torch=verdict.get("machine", {}).get("torch", ""),
        source="" if _bare(source) in _released(item.lesson, item.notebook) else source,
        endless=tuple(verdict.get("endless", ())),
        **given,
    )


def definition(entry: str, sources: Iterable[str]) -> str:
    """The last cell that defines the entry point; "" where none does, or where it is no Python."""
    found = ""
    for source in sources:
        tree = parsed(source)
        if tree and any(getattr(node, "name", None) == entry for node in tree.body):
            found = source
    return found


@functools.cache
def _released(lesson: str, notebook: str) -> frozenset[str]:
    """The cells of a release, among them the stubs."""
    return frozenset(_bare(cell.source) for cell in taken.released(lesson, notebook).cells if cell.cell_type == "code")


def _bare(source: str) -> str:
    """The code without comments and layout."""
    try:
        return ast.dump(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source


FIRST = (
    "amber brisk calm dusky early fleet gentle hardy idle jolly keen lucky misty noble olive plain quiet rapid".split()
)
SECOND = "alder birch cedar dune elm fjord grove heron isle juniper kelp lark maple newt otter pine quail reed".split()


def pseudonyms(lesson: str, students: Iterable[str]) -> dict[str, str]:
    """Names that only the run's seed leads back from; two students never share one."""
    seed, found = run_seed(VERDICTS, lesson), {}
    for student in sorted(students):
        digest = int(hashlib.sha256(f"pseudonym {seed} {student}".encode()).hexdigest(), 16)
        name = f"{FIRST[digest % 18]} {SECOND[digest // 18 % 18]}"
        number = 2
        while name in found.values():
            name, number = f"{name.rstrip('0123456789 ')} {number}", number + 1
        found[student] = name
    return found
