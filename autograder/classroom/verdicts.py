"""The verdicts on a submission: what its check cells ask for, read where it is known, made in a sandbox where not.

A verdict is a file. Its name is a hash of what was asked (the text, the exercise's version, the seed) and the tier on
which it was answered. So grading can be repeated, resumed and shared out to machines of different kinds, and where
several tiers have answered, the highest counts.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import json
import os
import platform
import sys
import time
import traceback
from html import escape
from pathlib import Path

import torch
from nbformat import NotebookNode

from autograder import exercise as exercises
from autograder.classroom import report
from autograder.inside.calling import quiet
from autograder.judging.judge import NO_SPEED, NOT_ALONE
from autograder.judging.verdict import Asked, SpeedVerdict, Verdict
from autograder.referee.referee import Referee, fingerprint
from autograder.referee.room import NoRoom
from autograder.referee.sandbox import NoSandbox
from autograder.referee.submission import Submission, visible
from course_lib import device
from course_lib.meaning import meaning, reached

ROOT = Path(__file__).resolve().parents[2]
A_PERSON, A_GPU = "a person", "a GPU"  # for whom points wait
# Of a verdict, the one that knows most last. On a GPU that others may use at the same time, no speed is measured.
TIERS = ("interpreter", "shared", "gpu")


def is_check(cell: NotebookNode) -> bool:
    """A cell that is graded without a person."""
    marks = cell.metadata.get("nbgrader", {})
    return cell.cell_type == "code" and bool(marks.get("grade")) and not marks.get("solution")


def asked_by(cell: NotebookNode) -> Asked | None:
    """The exercise that a check cell names, read from its text and never run."""
    for node in ast.walk(ast.parse(cell.source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("check", "check_speed"):
            return Asked(ast.literal_eval(node.args[0]), node.func.id == "check_speed")
    return None


def seed_file(folder: Path, assignment: str) -> Path:
    return folder / f"{assignment}.seed"


def run_seed(folder: Path, assignment: str) -> int:
    """One seed a grading run, from which every text gets its own; delete the file to begin another run.

    Reports show a hash of what is made of it, so it is too long to be found by trying. Only its owner can read it.
    """
    path = seed_file(folder, assignment)
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        drawn = beside(path)
        with open(os.open(drawn, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(str(int.from_bytes(os.urandom(16), "little")))
        with contextlib.suppress(FileExistsError):  # another grader was first
            os.link(drawn, path)
        drawn.unlink()
    return int(path.read_text())


def beside(path: Path) -> Path:
    """A name for what will become this file, of this process on this machine alone."""
    return path.with_suffix(f".{platform.node()}-{os.getpid()}")


def own_seed(run: int, submission: Submission) -> int:
    """The seed of one text in a run. A report tells inputs and expected values: they are of no use to the next text."""
    parts = [run, [[cell.name, cell.source] for cell in submission.cells]]
    return int(hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:30], 16)


class Judging:
    """The verdicts of one submission: read where they are known, made in a sandbox where not."""

    def __init__(self, submission: Submission, release: NotebookNode, run: int, folder: Path, alone: bool = True):
        """run: the seed of the whole grading run. alone: nobody else uses this process's GPU."""
        self.submission, self.seed, self.folder, self.alone = submission, own_seed(run, submission), folder, alone
        self.imports = imported_by(release)
        self.asked = list(filter(None, map(asked_by, filter(is_check, release.cells))))
        self.referee: Referee | None = None

    def __enter__(self) -> Judging:
        return self

    def __exit__(self, *error) -> None:
        if self.referee:
            self.referee.__exit__(*error)

    def verdict(self, asked: Asked) -> dict:
        """The best that is known, or can be known here. What is made here is kept."""
        known = self.known(asked)
        if known is None or _rank(known["tier_of_file"]) < _rank(self._tier(asked)):
            try:
                known = self.made(asked)
            except OUR_FAULT as error:
                if same_for_everybody(error):
                    raise
                trace()
                return unjudged(asked, error)  # not kept: grading again tries again
            known = self._kept(asked, known)
        return known

    def known(self, asked: Asked) -> dict | None:
        """The verdict of the highest tier that there is."""
        files = (self._path(asked, tier) for tier in reversed(TIERS))
        return next(filter(None, map(read, files)), None)

    def lacks(self, tier: str) -> bool:
        """Whether a machine of this tier would have something to judge."""
        for asked in self.asked:
            known = self.known(asked)
            if known is None or _rank(known["tier_of_file"]) < _rank(reachable(asked, tier)):
                return True
        return False

    def made(self, asked: Asked) -> dict:
        """Judged here and now, and not kept."""
        began, exercise, referee, here = time.monotonic(), exercises.get(asked.name), self._referee(), _here()
        verdict = (referee.examine_speed if asked.speed else referee.examine)(exercise, self.seed)
        return stored(verdict) | {
            "tier_of_file": "shared" if asked.speed and verdict.note == NOT_ALONE else here.tier,
            "machine": {"name": here.name, "host": platform.node(), "torch": here.torch, "triton": here.triton},
            "seconds": round(time.monotonic() - began, 1),
            "seed": fingerprint(self.seed),
            "judged_by": grader_hash(asked.name),
        }

    def _kept(self, asked: Asked, made: dict) -> dict:
        """The first of several that judged the same at the same time is kept; all go on with that one."""
        path = self._path(asked, made["tier_of_file"])
        made["file"] = path.name
        new = beside(path)
        try:
            new.write_text(json.dumps(made), encoding="utf-8")
            try:
                os.link(new, path)
            except FileExistsError:
                if found := read(path):
                    return found
                os.replace(new, path)  # what a power cut left empty
        finally:
            new.unlink(missing_ok=True)
        return made

    def _referee(self) -> Referee:
        if self.referee is None:
            self.referee = Referee(self.submission, self.imports, alone=self.alone).__enter__()
            names = {asked.name for asked in self.asked if not read(self._path(asked, self._tier(asked)))}
            self.referee.examine_ahead(map(exercises.get, sorted(names)), self.seed)
        return self.referee

    def _tier(self, asked: Asked) -> str:
        return reachable(asked, "gpu" if device.TIER == "gpu" and self.alone else TIERS[device.TIER == "gpu"])

    def _path(self, asked: Asked, tier: str) -> Path:
        return self.folder / f"{self.key(asked)}.{tier}.json"

    def key(self, asked: Asked) -> str:
        """The hash of all that is asked; by whom, on which machine, with which version of torch, is no part of it."""
        parts = [[c.name, c.source] for c in self.submission.cells]
        parts += [asked.name, asked.speed, self.submission.settled(exercises.get(asked.name).entry)]
        parts += [grader_hash(asked.name), self.seed]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


@functools.cache
def _here() -> device.Machine:
    """This machine; to read it takes a tenth of a second where there is a GPU."""
    return device.machine()


def reachable(asked: Asked, tier: str) -> str:
    """The tier of the file that a machine of this tier writes: only speed asks for a GPU of one's own."""
    return "gpu" if tier == "shared" and not asked.speed else tier


def _rank(tier: str) -> int:
    return TIERS.index(tier)


def read(path: Path) -> dict | None:
    """A verdict that is known; one that a power cut left empty is not."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def stored(verdict: Verdict | SpeedVerdict) -> dict:
    """What a verdict file holds: the points, and the report in both forms. What was expected is for the instructor."""
    is_speed = isinstance(verdict, SpeedVerdict)
    with quiet():
        return {
            "exercise": verdict.exercise,
            "tier": verdict.tier,
            "points": verdict.points,
            "out_of": verdict.out_of,
            "pending": verdict.pending,
            "waits": _waits(verdict),
            "text": [visible(line) for line in (report.speed_lines if is_speed else report.lines)(verdict)],
            "html": visible((report.speed_html if is_speed else report.html)(verdict)),
            "endless": [] if is_speed else list(map(visible, verdict.endless)),
            "cases": [] if is_speed else [[case.name, case.right] for case in verdict.cases],
            "expected": {} if is_speed else {c.name: visible(c.expected) for c in verdict.cases if c.expected},
            "mistake": "" if is_speed or not verdict.diagnosis else verdict.diagnosis.mistake or "",
            "share": min((row.share for row in verdict.rows), default=None) if is_speed else None,
        }


def _waits(verdict: Verdict | SpeedVerdict) -> str:
    """For whom, or ""."""
    if not verdict.pending:
        return ""
    if isinstance(verdict, SpeedVerdict):
        return A_GPU if verdict.note in (NO_SPEED, NOT_ALONE) else A_PERSON
    return A_PERSON if verdict.held else A_GPU


def imported_by(release: NotebookNode) -> tuple[str, ...]:
    """Modules that the setup cells import, so that they are there before any worker starts."""
    found: list[str] = []
    for cell in release.cells:
        if cell.cell_type == "code" and "setup" in cell.metadata.get("tags", []):
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.Import):
                    found += [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.module:
                    found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(dict.fromkeys(name for name in found if not name.startswith("autograder")))


JUDGES = ("autograder/call", "autograder/inside", "autograder/judging", "autograder/referee")
PROBES = "autograder/inside/probes"  # of which each looks at a few exercises
ONLY_SHOW = ("plots", "widgets")  # parts of course_lib


@functools.lru_cache
def grader_hash(name: str) -> str:
    """Changes when code comes to mean something else that decides a verdict on this exercise: its own modules, its
    probe, the judging, what its lesson imports, and what all of these import. Comments, pages, other exercises and what
    only other lessons use do not count."""
    unit = exercises.of_unit(name.partition(".")[0])
    parts = [(str(path.relative_to(ROOT)), meaning([path])) for path in sorted(_deciding(name))]
    parts += [(one.entry, one.asks_for_kernels) for one in unit]  # the audit reads the text by these
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _deciding(name: str) -> set[Path]:
    wanted, unit = exercises.get(name), name.partition(".")[0]
    loaded = [module for key, module in [*sys.modules.items()] if key.startswith("autograder.exercises.")]
    paths = [Path(one.__file__) for one in loaded if any(value is wanted for value in [*vars(one).values()])]
    first = {path for path in paths if path.name != "__init__.py"} | {ROOT / "autograder/exercise.py"}
    if wanted.probe:
        first.add(ROOT / f"{wanted.probe.partition(':')[0].replace('.', '/')}.py")
    first |= {path for room in JUDGES for path in (ROOT / room).rglob("*.py") if ROOT / PROBES not in path.parents}
    lesson = {*(ROOT / "solutions").glob(f"*_{unit}/*.py")}
    found = first.union(*(reached(path, ["autograder/exercises", PROBES, "course_lib"]) for path in first | lesson))
    return {path for path in found if not {*path.parts} & {*ONLY_SHOW}}


# What the referee raises when it is itself wrong about what was handed in. A full disk raises something else.
OUR_FAULT = (TypeError, ValueError, LookupError, AttributeError, AssertionError, RuntimeError, MemoryError)


def same_for_everybody(error: Exception) -> bool:
    """Whether the next submission would meet the same: then the run ends, and begins again where it was."""
    if isinstance(error, (NoSandbox, NoRoom, torch.OutOfMemoryError)):
        return True
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:  # the GPU is gone
        return True
    return False


def trace() -> None:
    """For the instructor."""
    print(visible(traceback.format_exc()), file=sys.stderr)


UNREAD = "nothing of this hand-in could be judged"  # for_a_person adds the reason


def unjudged(asked: Asked, error: Exception) -> dict:
    """The referee's own fault costs nobody a grade."""
    why = "the referee could not judge this, and that may be its own fault"
    return for_a_person(asked, why, f"{type(error).__name__}: {error}"[:300])


def for_a_person(asked: Asked, why: str, more: str) -> dict:
    """No points yet, and the reason."""
    exercise = exercises.get(asked.name)
    out_of = exercise.speed.points if asked.speed else exercise.points
    shown = f"<p>{asked.name}: {why}: a person grades it.</p><p><small>{visible(escape(more))}</small></p>"
    reason = visible(f"{why} ({more})")
    return {"points": 0.0, "out_of": out_of, "pending": True, "waits": A_PERSON, "why": reason, "html": shown}
