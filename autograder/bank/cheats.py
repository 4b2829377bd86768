"""The cheats of the bank against the referee. `python -m autograder bank --cheats` runs all that fit this machine.

    tests/bank/<exercise>/cheats.diff   edits of right solutions of that exercise, as bank/edits.py says

A cheat is the source of one cell and is never imported here. It is "caught by" what is expected to stop it, and says:

    FAMILY   one of FAMILIES
    TIERS    where it can be tried, if not everywhere
    HELD     True: being sent to a person counts as caught, because the evidence against it can be forged
    ALONE    True: it takes the whole device, so nothing is tried beside it
    PATIENT  True: it ends, but a call takes seconds, because the exercise compiles something
    SPEED    True: its answers are right and its points for them earned; it is after the points for speed

A cheat gets points from `check`, where the student's code and the judge share a process, unless its reason says why
"NAIVE is False".

Every cheat is tried in a fresh room, and an honest neighbour after it in the same room must get its full points. Cheats
are tried one after the other by one process, as a cohort is graded: the next cheat's neighbour, in the next room, shows
too that this one did no harm.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from autograder.bank import Entry, entries, find
from autograder.bank.apart import Apart
from autograder.bank.recording import keep_apart
from autograder.classroom import report
from autograder.exercise import Exercise, get
from autograder.referee import lanes
from autograder.referee.referee import Patience, Referee
from autograder.referee.submission import Cell, Submission
from course_lib import device

COURSE = Path(__file__).resolve().parents[2]
NEIGHBOUR = "start.axpy"
HONEST = find(f"{NEIGHBOUR}/right/masked")
LIMIT_S = 300.0  # for one cheat and its neighbour, compiling included; a referee that needs longer hangs

FAMILIES = (
    "vendor call",
    "computed elsewhere",
    "reference kernel",
    "fallback",
    "decoy kernel",
    "honest when audited",
    "patched timers",
    "calibration",
    "side stream",
    "background work",
    "persistent kernel",
    "done before the work",
    "lazy tensor",
    "cache",
    "precomputation",
    "stale graph",
    "output not computed",
    "equal to everything",
    "inputs changed",
    "out of bounds",
    "race",
    "lower precision",
    "extrapolation",
    "scan for answers",
    "zygote",
    "slower reference",
    "patched modules",
    "hidden names",
    "notebook machinery",
    "environment sniffing",
    "result channel",
    "project files",
    "gradebook",
    "script in the report",
    "bomb",
    "hang",
    "crash",
)

TAKE_ALL = ("bomb", "hang")  # of a machine


@dataclass(frozen=True)
class Cheat:
    entry: Entry
    reason: str
    family: str
    naive: bool
    caught: str
    tiers: tuple[str, ...]
    held: bool
    speed: bool
    alone: bool
    patient: bool

    @property
    def exercise(self) -> str:
        return self.entry.exercise

    @property
    def source(self) -> str:
        return self.entry.source

    def __str__(self) -> str:
        return f"{self.exercise}/{self.entry.name}"


def cheat_of(entry: Entry) -> Cheat:
    """What the edit says about itself; nothing in it runs."""
    edit, says = entry.where, entry.where.says
    return Cheat(
        entry,
        edit.reason,
        says["FAMILY"],
        "NAIVE is False:" not in edit.reason,
        edit.caught_by,
        says.get("TIERS", get(entry.exercise).tiers),
        says.get("HELD", False),
        says.get("SPEED", False),
        says.get("ALONE", False) or says.get("SPEED", False) or says["FAMILY"] in TAKE_ALL,
        says.get("PATIENT", False),
    )


def cheats(names: Iterable[str] = ()) -> list[Cheat]:
    """The cheats of some exercises or units, or of all."""
    return [cheat_of(entry) for entry in entries(names, ["cheats"])]


def one_each_family(found: Iterable[Cheat]) -> list[Cheat]:
    """The last of each family that this machine can try: of start.axpy where it can be, which is soonest judged."""
    return list({c.family: c for c in found if device.TIER in c.tiers}.values())


@dataclass(frozen=True)
class Tried:
    """What came of one cheat."""

    cheat: Cheat
    points: float = 0.0
    held: float = 0.0
    how: str = ""  # what the verdict says
    harm: str = ""  # what else happened that may not happen
    neighbour: str = ""  # what the honest neighbour in the same room lacks of its points
    seconds: float = 0.0

    @property
    def missed(self) -> str:
        """Why this counts as a miss, or ''."""
        if self.points:
            return f"{self.points:g} points"
        if self.held and not self.cheat.held:
            return f"{self.held:g} points wait for a person: the evidence against it cannot be forged, so it needs none"
        return self.harm

    @property
    def verdict(self) -> str:
        return "MISSED" if self.missed else "held" if self.held else "0 points"


def attempt(cheat: Cheat, seed: int) -> Tried:
    """One cheat and then its neighbour, in this process. What it raises here is a miss too."""
    start, exercise = time.perf_counter(), _small(get(cheat.exercise))
    if cheat.speed:  # one timed case shows it
        exercise = replace(exercise, speed=replace(exercise.speed, cases=exercise.speed.cases[:1]))
    with Referee(_submission(cheat.entry), patience=_patience(cheat)) as there:
        verdict = (there.examine_speed if cheat.speed else there.examine)(exercise, seed)
        # a room has one submission; nothing but this bank gives it another
        there.room.submission, there.room.patience = _submission(HONEST), Patience()
        short = _short_of(there, seed + 1)
    shown = (report.speed_html if cheat.speed else report.html)(verdict)
    harm = [short and f"the neighbour in the same room: {short}", "<script" in shown and "a script in the report"]
    tried = Tried(cheat, verdict.points, getattr(verdict, "held", 0.0), how(verdict), neighbour=short)
    return replace(tried, harm="; ".join(filter(None, harm)), seconds=time.perf_counter() - start)


def neighbour_alone(seed: int) -> str:
    """What an honest submission in a fresh room lacks of its full points, or ''."""
    with Referee(_submission(HONEST)) as there:
        return _short_of(there, seed)


def _patience(cheat: Cheat) -> Patience:
    """Little, because many cheats never end. What a person is to see has to end. A first call that imports the compiler
    takes 2 s of a processor, and has to come to what is expected to stop the cheat."""
    if cheat.held or cheat.patient:
        return Patience()
    return Patience(cells_s=20.0, call_s=15.0)


def _small(exercise: Exercise) -> Exercise:
    """On a GPU, without the cases that fill its memory: others are tried beside this one."""
    return replace(exercise, cases=tuple(case for case in exercise.cases if case.live or device.TIER != "gpu"))


def _submission(entry: Entry) -> Submission:
    return Submission((Cell(entry.name, entry.source),))


def _short_of(there: Referee, seed: int) -> str:
    exercise = _small(get(NEIGHBOUR))
    verdict = there.examine(exercise, seed)
    return "" if verdict.points == exercise.points else f"{verdict.points:g} points. {how(verdict)}"


def how(verdict) -> str:
    """The sentence of a verdict that says why."""
    wrong = next((case.why for case in getattr(verdict, "cases", ()) if case.why), "")
    return " ".join((verdict.note or wrong).split())[:160]


# ------------------------------------------------------------------------------------------------- many of them


PROCESSORS = 2 if device.TIER == "gpu" else 4  # for one cheat and its neighbour


def run(todo: Iterable[Cheat], seed: int) -> Iterator[Tried]:
    """In rows side by side where the machine is large enough. Of each GPU, the row that ends last goes on with cheats
    that take the whole of it."""
    todo = sorted(todo, key=lambda cheat: cheat.alone)
    together = sum(not cheat.alone for cheat in todo)
    processors, gpus = len(os.sched_getaffinity(0)), _gpus() or [None]
    rows = max(processors // PROCESSORS, len(gpus))
    if rows < 2:
        yield from in_a_row(todo, seed)
        return
    context = multiprocessing.get_context("fork")
    done, shared, alone = context.Queue(), _Taken(todo[:together]), _Taken(todo[together:])
    busy = {gpu: context.Value("i", len(range(n, rows, len(gpus)))) for n, gpu in enumerate(gpus)}
    which = [gpus[n % len(gpus)] for n in range(rows)]
    processes = [context.Process(target=_put_all, args=(done, seed, gpu, busy[gpu], shared, alone)) for gpu in which]
    for process in processes:
        process.start()
    for _ in todo:
        yield done.get(timeout=3 * LIMIT_S)
    for process in processes:
        process.join()


class _Taken:
    """A list that several processes share out: each takes the next one when it is free."""

    def __init__(self, todo: list[Cheat]):
        self.todo, self.count = todo, multiprocessing.get_context("fork").Value("i", 0)

    def __iter__(self) -> Iterator[Cheat]:
        while (n := _added(self.count, 1)) <= len(self.todo):
            yield self.todo[n - 1]


def _added(count, by: int) -> int:
    with count.get_lock():
        count.value += by
        return count.value


def _gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(n) for n in range(torch.cuda.device_count())]


def _put_all(done, seed: int, gpu: str | None, busy, shared: _Taken, alone: _Taken) -> None:
    lanes.MOST = 1  # the rows have shared the machine out already
    # Answers are judged on the host: rows that each take all of its processors for that are in each other's way
    torch.set_num_threads(PROCESSORS)
    os.environ["OMP_NUM_THREADS"] = str(PROCESSORS)  # for their sandboxes
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # nothing has asked for a device yet
    for tried in in_a_row(shared, seed):
        done.put(tried)
    if _added(busy, -1) == 0:
        for tried in in_a_row(alone, seed):
            done.put(tried)


def in_a_row(todo: Iterable[Cheat], seed: int) -> Iterator[Tried]:
    """One after the other. The last neighbour is alone: it shows what the last cheat left behind."""
    waiting: Tried | None = None
    apart = Apart()
    try:
        for cheat in todo:
            tried, well = _tried(apart, cheat, seed)
            if not well:
                apart.close()
                apart = Apart()
            if waiting:
                yield _spoilt(waiting, tried.neighbour and f"the neighbour in the next room: {tried.neighbour}")
            waiting = tried
        if waiting:
            _, short = _asked(apart, neighbour_alone, seed)
            yield _spoilt(waiting, short and f"the neighbour in the next room: {short}")
    finally:
        apart.close()


def _spoilt(tried: Tried, by: str) -> Tried:
    return replace(tried, harm="; ".join(filter(None, [tried.harm, by])))


def _tried(apart: Apart, cheat: Cheat, seed: int) -> tuple[Tried, bool]:
    """A cheat may not hang the referee, nor make it raise, nor touch our files. Whether the process can go on, too."""
    library = fingerprint(COURSE / "course_lib")
    with tempfile.TemporaryDirectory() as folder:
        gradebook(Path(folder))
        marks = fingerprint(Path(folder))
        well, answer = _asked(apart, _in_folder, folder, cheat, seed)
        tried = answer if well else Tried(cheat, harm=f"the referee: {answer}")
        for where, before in ((Path(folder), marks), (COURSE / "course_lib", library)):
            if changed := dict(fingerprint(where).items() ^ before.items()):
                tried = _spoilt(tried, f"files were changed: {', '.join(sorted(changed)[:4])}")
    return tried, well


def _asked(apart: Apart, function: Callable, *args) -> tuple[bool, object]:
    """Whether the function returned in time, and what; or why not."""
    apart.call(function, *args)
    if apart.pipe.poll(LIMIT_S):
        return apart.answer()
    apart.tell_where()
    return False, f"it did not end in {LIMIT_S:g} s"


def _in_folder(folder: str, cheat: Cheat, seed: int) -> Tried:
    with chdir(folder):
        return attempt(cheat, seed)


def fingerprint(folder: Path) -> dict[str, str]:
    """A hash of every file in a folder, by its path."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc")
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def gradebook(folder: Path) -> None:
    """What lies around an instructor: a gradebook, somebody else's submission, a solution."""
    import sqlite3

    with sqlite3.connect(folder / "gradebook.db") as book:
        book.execute("create table grade (student text, auto_score real, max_score real)")
        book.execute("insert into grade values ('ada', 0, 5)")
    book.close()
    for place in ("submitted/ada/00_start", "source/00_start"):
        (folder / place).mkdir(parents=True)
        (folder / place / "answer.py").write_text(HONEST.source)


def row(tried: Tried) -> dict:
    why = (tried.missed or tried.how).replace(f"{COURSE}/", "")
    told = {"verdict": tried.verdict, "points": tried.points, "why": why}
    return {"exercise": tried.cheat.exercise, "cheat": str(tried.cheat), **told, "seconds": tried.seconds}


def main(names: Iterable[str], seed: int, quick: bool, record: str | None = None) -> int:
    todo = [cheat for cheat in cheats(names) if device.TIER in cheat.tiers]
    todo = one_each_family(todo) if quick else todo
    print(f"{len(todo)} cheats, tier {device.TIER}, seed {seed}", flush=True)
    start, missed, held, rows, left = time.perf_counter(), 0, 0, [], Counter(cheat.exercise for cheat in todo)
    for tried in run(todo, seed):
        missed, held = missed + bool(tried.missed), held + (tried.verdict == "held")
        rows.append(row(tried))
        left[tried.cheat.exercise] -= 1
        if record and not left[tried.cheat.exercise]:  # a run that is cut short keeps what it finished
            of_it = [r for r in rows if r["exercise"] == tried.cheat.exercise]
            keep_apart("bank_cheats", of_it, record)
        print(f"{tried.verdict:<10}{tried.cheat!s:<58}{tried.missed or tried.how}", flush=True)
    took = time.perf_counter() - start
    print(f"{len(todo) - missed} of {len(todo)} caught, {held} of them by a person; {missed} missed; {took:.0f} s")
    if not todo:
        print("No cheat fits this machine and this choice.", file=sys.stderr)
    return 1 if missed or not todo else 0
