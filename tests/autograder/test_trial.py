"""A class of sixty hand-ins goes the whole way, from the students' archive to an appeal, on a Slurm of four nodes.

    pytest tests/autograder/test_trial.py -s

prints how long each step took, and the marks by kind of hand-in. benchmarks/notes/grading.md has such a table.
"""

import contextlib
import csv
import datetime
import io
import os
import sqlite3
import tarfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from autograder.bank import find
from course_lib.device import machine
from tests.autograder.slurm_here import NAME, NEEDS, UNIT, Cluster, Course, notebook, wait

pytestmark = NEEDS
NODES = 4
FULL, ALL_BUT_ONE = 5.0, 3.57  # points; 6 of 7 cases are 5/7 of the way from half of them to all
CHECK, QUESTIONS = "start_axpy_check", ("start_axpy_floor", "start_axpy_threads")
CALLED = {CHECK: "the code", QUESTIONS[0]: "question 0.2", QUESTIONS[1]: "question 0.3"}
RIGHT = [find(f"start.axpy/right/{name}").source for name in ("masked", "grid_stride", "overlapping_last_block")]
MISTAKES = ("no_mask", "a_forgotten", "a_on_y", "minus", "grid_off_by_one", "mask_one_too_short", "out_never_written")
MISTAKES += ("program_id_not_scaled",)
KERNEL = RIGHT[0].partition("def axpy(")[0]
HALF_DONE = f'{KERNEL}def axpy(a, x, y, out):\n    raise NotImplementedError("not written yet")\n'
NOT_FOR_NONE = "\n_axpy = axpy\ndef axpy(a, x, y, out):\n    assert x.numel() > 0\n    _axpy(a, x, y, out)\n"
SLOW = "\nimport time\n_axpy = axpy\ndef axpy(a, x, y, out):\n    time.sleep(1)\n    _axpy(a, x, y, out)\n"
SAID = "It moves $3 \\cdot 4 \\cdot 2^{26}$ bytes."
# The case that an appeal is about, and what stands in its place when the exercise was mended.
APPEALED = 'Case("no elements", lambda d: _call(d, 0))'
MENDED = 'Case("a larger power of two", lambda d: _call(d, 2**14))'
FIRST, LAST = "2026-01-01 10:00:00.000000 UTC", "2026-01-02 10:00:00.000000 UTC"
# Who hands in through Moodle: id, first name, last name
MOODLE = [
    ("jmüller", "Jörg", "Müller"),
    ("avdl", "Änne", "von der Lühe"),
    ("øå", "Ørjan", "Åse Holm"),
    ("li wei", "Wei", "Li"),
    ("darc", "Jeanne", "d'Arc"),
    ("s-ß", "Stefan", "Groß"),
    ("zz", "Zoë", "Zülal Çelik"),
    ("ñ", "Íñigo", "Peña Núñez"),
]
THROUGH_EXCHANGE = ["Anna Schmidt", "Jürgen Groß", "åsa öberg"]


@dataclass(frozen=True)
class Kind:
    """Hand-ins of one kind, and what must come of them."""

    name: str
    answers: list[str | None]  # one a hand-in
    points: float = 0.0
    mistake: str = ""  # the name that the report must have
    more: str = ""  # in a cell of their own
    answered: tuple[str, ...] = ()  # questions, which a person grades
    zipped: bool = False
    twice: bool = False  # and an answer with a mistake before
    lesson: str = UNIT  # whose notebook it is


def right(name: str, answers: list[str], **more) -> Kind:
    return Kind(name, answers, FULL, **more)


KINDS = [
    right("right, with words", RIGHT * 3, answered=QUESTIONS),
    right("right", RIGHT * 3),
    right("right, and slow", [answer + SLOW for answer in RIGHT]),
    right("right, with an import that nothing uses", RIGHT[:1], more="import os"),
    right("right, with a cell that never ends", RIGHT[:1], more="while True:\n    pass"),
    right("right, in a zip", RIGHT[1:2], zipped=True),
    right("right, after a first hand-in that was wrong", RIGHT[2:], twice=True),
    Kind("right but for no elements", [answer + NOT_FOR_NONE for answer in RIGHT[:2]], ALL_BUT_ONE),
    *(Kind(f"mistake: {name}", [find(f"start.axpy/mistakes/{name}").source] * 2, mistake=name) for name in MISTAKES),
    Kind("half done", [HALF_DONE] * 4, answered=QUESTIONS[:1]),
    Kind("does not parse", [RIGHT[0].replace("BLOCK: tl.constexpr):", "BLOCK: tl.constexpr)")] * 2),
    Kind("untouched", [None] * 7),
    Kind("cheat", [find(f"start.axpy/cheats/{name}").source for name in ("decoy_thrown_away", "arithmetic_in_python")]),
    Kind("another lesson", [None], lesson="01_roofline"),
]  # fmt: skip


@dataclass
class HandIn:
    student: str
    kind: Kind
    number: int
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def waits(self) -> set[str]:
        """Cells that a person has to look at, and no others."""
        return {*self.kind.answered} if self.kind.lesson == UNIT else {CHECK, *QUESTIONS}


class Whole(Course):
    """A copy of all that instructors have."""

    rooms = ("autograder", "course_lib", "solutions", "notebooks", "students", "benchmarks", "tests/bank", "book")
    files = ("nbgrader_config.py", "pyproject.toml", "requirements.txt", "constraints.txt", "LICENSE", "README.md")

    def book(self) -> dict[str, dict[str, tuple[float, bool]]]:
        """Student -> cell -> points by the machine, and whether a person is asked."""
        found: dict[str, dict[str, tuple[float, bool]]] = {}
        with contextlib.closing(sqlite3.connect(self.folder / "gradebook.db")) as book:
            for student, cell, points, waits in book.execute(
                "select s.student_id, c.name, g.auto_score, g.needs_manual_grade from grade g "
                "join submitted_notebook n on g.notebook_id = n.id "
                "join submitted_assignment s on n.assignment_id = s.id join base_cell c on g.cell_id = c.id"
            ):
                found.setdefault(student, {})[cell] = (points or 0.0, bool(waits))
        return found

    def mistakes(self) -> dict[str, str]:
        """Student -> the mistake that the class's table names."""
        with (self.verdicts / f"reports/{UNIT}.csv").open(encoding="utf-8", newline="") as file:
            return {row["student"]: row["mistake"] for row in csv.DictReader(file) if row["exercise"] == "start.axpy"}


class Clock:
    """Seconds of each step, in their order."""

    def __init__(self):
        self.took: dict[str, float] = {}

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.took[name] = time.monotonic() - began
        print(f"{name}: {self.took[name]:.1f} s", flush=True)


def hand_ins(students: Path) -> list[HandIn]:
    """Made of what lies in the students' archive. Texts differ by a comment, but for one pair."""
    names = iter([*(id for id, _, _ in MOODLE), *THROUGH_EXCHANGE, *(f"s{n:02}" for n in range(99))])
    every = [(kind, answer) for kind in KINDS for answer in kind.answers]
    every = [every[n] for first in range(7) for n in range(first, len(every), 7)]  # kinds mixed
    found = []
    for number, (kind, answer) in enumerate(every):
        one = HandIn(next(names), kind, number)
        release = next((students / "notebooks" / kind.lesson).glob("*.ipynb"))
        words = dict.fromkeys(kind.answered, SAID)
        text = notebook(release, {"start_axpy": answer, **words}, f"# {number}\n{kind.more}").encode()
        one.files = {"my work.zip": zipped({f"{NAME}.ipynb": text})} if kind.zipped else {f"{NAME}.ipynb": text}
        found.append(one)
    first, second = [one for one in found if one.kind.name == "right"][:2]
    second.files = dict(first.files)
    return found


def zipped(files: dict[str, bytes]) -> bytes:
    with zipfile.ZipFile(made := io.BytesIO(), "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return made.getvalue()


def handed_over(course: Whole, every: list[HandIn], students: Path) -> None:
    """To Moodle's archive and to the exchange, as students and Moodle do."""
    people = {id: f"{first} {last}" for id, first, last in MOODLE}
    of_moodle = {
        f"{people[one.student]}_{1000 + one.number}_assignsubmission_file_/{name}": data
        for one in every
        if one.student in people
        for name, data in one.files.items()
    }
    archive = course.folder / "downloaded" / UNIT / "archive" / "GPU course.zip"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(zipped(of_moodle))
    wrong = {"start_axpy": find("start.axpy/mistakes/minus").source}
    earlier = {f"{NAME}.ipynb": notebook(students / f"notebooks/{UNIT}/{NAME}.ipynb", wrong).encode()}
    inbound = course.folder.with_name(f"{course.folder.name}-exchange") / "speed-of-light/inbound"
    for one in every:
        if one.student not in people:
            for at, files in [(FIRST, earlier)] * one.kind.twice + [(LAST, one.files)]:
                folder = inbound / f"{one.student}+{UNIT}+{at}+{one.number}"
                folder.mkdir()
                for name, data in {"timestamp.txt": at.encode(), **files}.items():
                    (folder / name).write_bytes(data)


def fine(done: tuple[int, str]) -> str:
    status, said = done
    assert status == 0, said
    return said


@pytest.fixture
def course(tmp_path):
    cluster = Cluster()
    cluster.start()
    (tmp_path / "course").mkdir()
    yield Whole(tmp_path / "course", cluster)
    cluster.end()


def test_sixty_hand_ins_from_the_students_archive_to_an_appeal(course, tmp_path):
    cluster, clock = course.cluster, Clock()
    with clock.step("`bundle`: the students' archive, all lessons"):
        fine(course.ours("bundle"))
    with tarfile.open(course.folder / "speed-of-light-students.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2, Debian 12's, has none
        archive.extractall(tmp_path)
    students = tmp_path / "speed-of-light"
    with clock.step("`release-check`: the gate of the lesson"):
        assert "Ready to be given out." in fine(course.ours("release-check", UNIT))

    every = hand_ins(students)
    handed = {one.student: one for one in every}
    assert len(every) + sum(one.kind.twice for one in every) == 60 and len(handed) == len(every)
    rows = [["id", "first_name", "last_name"], *MOODLE, *([one.student, "", ""] for one in every[len(MOODLE) :])]
    with (course.folder / "students.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    with clock.step("`roster`, `generate_assignment`, `release_assignment`"):
        fine(course.ours("roster", "students.csv"))
        fine(course.run("nbgrader", "generate_assignment", UNIT))
        fine(course.run("nbgrader", "release_assignment", UNIT))
    handed_over(course, every, students)
    with clock.step("`collect` and `zip_collect`"):
        fine(course.run("nbgrader", "collect", UNIT, "--update"))
        fine(course.run("nbgrader", "zip_collect", UNIT))
    assert {path.parent.name for path in course.folder.glob(f"submitted/*/{UNIT}")} == {*handed}

    with clock.step("`fleet` on four nodes, until ten were judged"):
        assert "without a verdict" in fine(course.fleet("--slurm", "partition=all"))
        wait(lambda: len(course.kept()) >= 10 and "R n1" in cluster.asked("squeue", "-h", "-o", "%t %N"))
    with clock.step("a node is lost, the array cancelled, the node back"):
        cluster.lose(1)
        cluster.asked("scancel", "--user=root")
        wait(course.quiet)
        cluster.node(1)
    before, said = course.kept(), course.status()
    assert " 0 failed" not in said and "The same command again submits what failed, and nothing else." in said
    with clock.step("the same command again, until all were judged"):
        fine(course.fleet("--slurm", "partition=all"))
        wait(course.quiet)
    assert f"{len(every)} of {len(every)} submissions done, 0 running, 0 failed, 0 waiting" in course.status()
    kept, judged = course.kept(), course.judged()
    assert {name: kept[name] for name in before} == before, "what was judged stays as it is"
    assert max(Counter(judged).values()) == 1, "none is judged twice"
    texts = len(every) - 2  # two handed in the same, and of another lesson's notebook nothing can be judged
    assert len(kept) == texts, "none is lost"
    assert texts - NODES <= len(judged) <= texts, "a task may end between a verdict and the line about it"

    with clock.step("`autograde`, which reads the verdicts"):
        fine(course.run("nbgrader", "autograde", UNIT, "--Autograde.only_known=True"))
    assert course.kept() == kept, "and judges nothing"
    book = course.book()
    assert book.keys() == handed.keys(), "none is lost"
    with clock.step("`generate_feedback` and `export`"):
        fine(course.run("nbgrader", "generate_feedback", UNIT))
        fine(course.run("nbgrader", "export"))
    with clock.step("`report`: a page and a table"):
        fine(course.ours("report", UNIT))
    page = (course.verdicts / f"reports/{UNIT}.html").read_text(encoding="utf-8")
    assert all(name in page for name in MISTAKES)
    named = course.mistakes()
    print(told(clock, every, book, named))
    for one in every:
        points = book[one.student][CHECK][0]
        assert points == one.kind.points, (one.student, one.kind.name, points)
        waits = {cell for cell, (_, asked) in book[one.student].items() if asked}
        assert waits == one.waits, (one.student, one.kind.name, waits)
        assert not one.kind.mistake or named[one.student] == one.kind.mistake, (one.student, named[one.student])

    appealing = [one.student for one in every if one.kind.name == "right but for no elements"]
    with clock.step("`verdict --again --why`: an appeal"):
        said = fine(course.ours("verdict", appealing[0], UNIT, "--again", "--why"))
    assert f"again, start.axpy: the same: {ALL_BUT_ONE} of 5." in said and "no elements" in said
    exercise = course.folder / "autograder/exercises/start/axpy.py"
    exercise.write_text(exercise.read_text().replace(APPEALED, MENDED))
    with clock.step("the exercise was mended: `fleet` judges all of them anew"):
        fine(course.fleet("--slurm", "partition=all"))
        wait(course.quiet)
    assert len(course.kept()) == 2 * texts and len(course.judged()) == len(judged) + texts
    with clock.step("`regrade`, and `regrade --write`"):
        said = fine(course.ours("regrade", UNIT, "start.axpy"))
        assert f"marks that change: {len(appealing)}; " in said
        fine(course.ours("regrade", UNIT, "start.axpy", "--write"))
    after = course.book()
    print(told(clock, every, after, named))
    assert {who for who in book if after[who] != book[who]} == {*appealing}
    assert all(after[who][CHECK] == (FULL, False) for who in appealing)


def told(clock: Clock, every: list[HandIn], book: dict, named: dict[str, str]) -> str:
    """The tables of the note: seconds of each step, and the marks by kind."""
    steps = [f"| {step} | {seconds:.0f} |" for step, seconds in clock.took.items()]
    steps.append(f"| **together** | **{sum(clock.took.values()):.0f}** |")
    kinds: dict[str, list[HandIn]] = {}
    for one in every:
        kinds.setdefault(one.kind.name, []).append(one)
    rows = []
    for name in (kind.name for kind in KINDS):
        those = kinds[name]
        points = {f"{book[one.student][CHECK][0]:g}" for one in those}
        asked = {CALLED[cell] for one in those for cell, (_, waits) in book[one.student].items() if waits}
        called = {f"`{named[one.student]}`" for one in those} - {"``"}
        rows.append(" | ".join((name, str(len(those)), *(", ".join(sorted(one)) for one in (points, asked, called)))))
    return "\n".join(
        [
            f"{machine().name}, {len(os.sched_getaffinity(0))} cores, {datetime.date.today()}",
            *("", "| step | seconds |", "|---|---|", *steps),
            *("", "| kind | hand-ins | points of 5 | a person is asked about | called |", "|---|---|---|---|---|"),
            *(f"| {row} |" for row in rows),
        ]
    )
