"""How far a fleet is, seen from verdict files and from what Slurm says is alive."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from autograder.classroom.counted import many
from autograder.classroom.fleet import plans, slurm
from autograder.classroom.fleet.plans import Plan, Text
from autograder.classroom.taken import VERDICTS, Item, items
from autograder.classroom.verdicts import TIERS, read

LISTED = 10  # failures that are named
LAST = 2000  # bytes of a log that are read
# What a task writes while it is at work, as `work` has it.
BEGUN, JUDGED = re.compile(r"task \d+:\d+ on .*"), re.compile(r".*: judged in [\d.]+ s")
ENDED = re.compile(r"task \d+:\d+ judged .*")


@dataclass
class Status:
    submissions: int
    running: int = 0
    waiting: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)  # student, why
    tasks: int = 0  # that run
    reasons: set[str] = field(default_factory=set)  # why tasks wait, in Slurm's words
    unknown: str = ""  # why Slurm does not tell which tasks run
    left_s: float | None = None
    timed_on: Counter = field(default_factory=Counter)  # GPU -> points for speed that were measured on it
    next_step: str = ""  # when all is done

    @property
    def done(self) -> int:
        return self.submissions - self.running - self.waiting - len(self.failed)


def of(lesson: str) -> Status | None:
    """None where no plan was made."""
    every = [plans.read(lesson, number) for number in plans.numbers(lesson)]
    if not every:
        return None
    there, unknown = plans.there(), ""
    of_slurm = by_slurm(every, there)
    try:
        alive, reasons = slurm.alive(of_slurm)
    except slurm.NoAnswer as error:  # as if every task waited
        alive = {(plan.number, task): False for plan in of_slurm for task in range(len(plan.batches))}
        reasons, unknown = set(), str(error)
    alive |= tasks_here(every)
    status = Status(every[0].submissions, tasks=sum(alive.values()), reasons=reasons, unknown=unknown)
    tasks = [(plan, task, batch) for plan in every for task, batch in enumerate(plan.batches)]
    seen: set[Item] = set()

    def once(text: Text) -> list[Item]:
        people = [item for item in text.who if item not in seen]
        seen.update(people)
        return people

    for plan, task, batch in tasks:
        runs = alive.get((plan.number, task))
        if runs is not None:  # what a text shares with others is done with the first
            people = [len(once(text)) for text in batch if not text.done(there)]
            status.running += sum(people[:1]) if runs else 0
            status.waiting += sum(people[1:]) if runs else sum(people)
    for plan, task, batch in tasks:  # of the others the newest plan tells: who handed in again is in a newer one
        for text in batch:
            people = once(text)
            if people and not text.done(there):
                why = why_ended(plan, task)
                status.failed += [(item.student, why) for item in people if lacks(item, plan.tier)]
    each_s, start_s = plans.measured(lesson)
    if status.tasks:
        texts = sum(
            not text.done(there) for plan in every for task, batch in enumerate(plan.batches)
            if (plan.number, task) in alive for text in batch
        )  # fmt: skip
        status.left_s = texts * each_s / status.tasks + start_s
    if status.done == status.submissions:
        every_text = [text for plan in every for batch in plan.batches for text in batch]
        status.timed_on = timed_on({name for text in every_text for names in text.files for name in names} & there)
        status.next_step = next_step(lesson)
    return status


def lacks(item: Item, tier: str) -> bool:
    """Whether what lies there now has no verdicts of this tier: a student may have taken a text back, or handed in
    another since, and no plan holds one that was judged before."""
    judging = item.judging() if item.path.exists() else None
    return judging is not None and judging.lacks(tier)


def next_step(lesson: str) -> str:
    """What is left to do when all is judged: the gradebook may lack the best verdict that is known of a text."""
    from autograder.classroom.marks import read_shown, shown_file  # brings nbgrader, which no task needs

    there, new, other = plans.there(), False, False
    for item in items(lesson):
        shown = read_shown(shown_file(item.student, item.lesson, item.notebook, VERDICTS))
        decided, judging = {one.get("verdict") for one in shown.values()}, item.judging()
        for asked in judging.asked if judging else ():
            names = (f"{judging.key(asked)}.{tier}.json" for tier in reversed(TIERS))
            other |= next((name for name in names if name in there), None) not in decided and bool(shown)
        new |= not shown
    write, known = f"Now write the gradebook: nbgrader autograde {lesson}", "--Autograde.only_known=True"
    if other:
        return f"{write} --force {known} (without --force, marks that are there stay)"
    return f"{write} {known}" if new else "The gradebook has them."


def by_slurm(every: list[Plan], there: set[str]) -> list[Plan]:
    """The plans of which Slurm is asked: those that are done need no Slurm."""
    return [plan for plan in every if plan.slurm and not all(t.done(there) for batch in plan.batches for t in batch)]


def tasks_alive(every: list[Plan]) -> dict[tuple[int, int], bool]:
    """(plan, task) -> whether it runs; one that is neither running nor waiting is not there."""
    asked = by_slurm(every, plans.there())
    try:
        return slurm.alive(asked)[0] | tasks_here(every)
    except slurm.NoAnswer as error:
        files = ", ".join(str(plans.path(plan.lesson, plan.number)) for plan in asked)
        raise slurm.NoAnswer(
            f"Tasks of earlier arrays may still run. Where they have ended, delete {files}. {error}"
        ) from error


def tasks_here(every: list[Plan]) -> dict[tuple[int, int], bool]:
    """As `tasks_alive`, of workers on this machine."""
    found = {}
    for plan in every:
        if not plan.slurm and is_held(plan.folder / "run"):
            for task in range(len(plan.batches)):
                if is_held(plan.folder / f"{task}.lock"):
                    found[plan.number, task] = True
                elif not plan.log(task).exists():
                    found[plan.number, task] = False
    return found


@contextlib.contextmanager
def holding(path: Path, otherwise: str = "") -> Iterator[TextIO]:
    """Hold a file; the kernel lets go when this process, and each that inherited the open file, has ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(otherwise or f"{path} is held by another process.") from None
        yield file


def is_held(path: Path) -> bool:
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


def why_ended(plan: Plan, task: int) -> str:
    """The last words of a task that ended before all was judged."""
    try:
        with plan.log(task).open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - LAST))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    begun = max((at for at, line in enumerate(lines) if BEGUN.fullmatch(line)), default=0)
    lines = lines[begun:]  # of the last of several runs of a task
    of_slurm = [line.strip("* ").partition("*** ")[2] or line for line in lines if line.startswith("slurmstepd")]
    said = (of_slurm or lines or ["it left no log: it never began, or its log could not be written"])[-1]
    if ENDED.fullmatch(said):  # and not all could be judged
        said = next((line for line in reversed(lines) if ", but not " in line), said)
    if BEGUN.fullmatch(said) or JUDGED.fullmatch(said):
        said = f"it ended without a word, as where its node is lost; its log ends with {said!r}"
    return f"task {plan.number}:{task}: {said.strip('* ')}"


def told(lesson: str, status: Status) -> list[str]:
    """For a terminal, and for a log."""
    share = status.done / max(1, status.submissions)
    bar = ("#" * int(20 * share)).ljust(20, ".")
    lines = [
        f"{lesson} [{bar}] {status.done} of {many(status.submissions, 'submission')} done, {status.running} running, "
        f"{len(status.failed)} failed, {status.waiting} waiting"
    ]
    if status.left_s is not None:
        end = datetime.datetime.now() + datetime.timedelta(seconds=status.left_s)
        tasks = "1 task runs" if status.tasks == 1 else f"{status.tasks} tasks run"
        lines.append(f"{tasks}; about {_long(status.left_s)} are left, until {end:%H:%M}")
    elif status.waiting and not status.unknown:
        lines.append("No task runs yet, so the end cannot be estimated.")
    if status.unknown:
        lines.append(f"Which of those that wait run, and which have failed, is not known: {status.unknown}")
    if status.reasons:
        lines.append(f"Why tasks wait, in Slurm's words: {', '.join(sorted(status.reasons))}")
    whys: dict[str, list[str]] = {}
    for student, why in status.failed:
        whys.setdefault(why, []).append(student)
    for why, students in [*whys.items()][:LISTED]:
        named = ", ".join(students[:3]) + (f" and {len(students) - 3} more" if len(students) > 3 else "")
        lines.append(f"failed: {named} ({why})")
    if len(whys) > LISTED:
        lines.append(f"and {len(whys) - LISTED} more")
    if status.failed and not status.running + status.waiting:
        lines.append("The same command again submits what failed, and nothing else.")
        lines.append(f"To grade those that are done: nbgrader autograde {lesson} --Autograde.only_known=True")
    if len(status.timed_on) > 1:
        each = ", ".join(f"{name} ({count})" for name, count in status.timed_on.most_common())
        lines.append(f"Points for speed were measured on different GPUs: {each}")
    if status.done == status.submissions:
        lines.append(status.next_step)
    return lines


def _long(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def timed_on(names: set[str]) -> Counter:
    """GPU -> how many points for speed were measured on it, over these verdict files."""
    kept = filter(None, (read(VERDICTS / name) for name in names))
    return Counter(one["machine"]["name"] for one in kept if one.get("share") is not None)
