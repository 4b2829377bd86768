"""The bank under many seeds: the same answer earns the same points whatever is drawn.

Of every submission the points under each seed are compared. A right one must earn all of them under every seed, in the
sizes of a notebook's check too, which are drawn anew each time; a mistake never all of them, and the points of none may
vary.

An exercise of plain data is judged wholly under every seed. Elsewhere a call takes up to seconds, so a mistake runs on
all cases under the first seeds only. Where one of its formulas (bank/formulas.py) is right in the very same cases under
all of these, the formula stands for it under the other seeds. Where none is, the mistake runs on the case that catches
it and on those where the first seeds disagree; every other case counts as before. On a GPU no formula stands for one,
and cases that not every card has room for are left out, with the mistakes that only they catch: one takes tens of GB.

What a submission earns under one seed does not depend on other seeds, so several processes share them: those of a right
one all, those of a mistake when its first seeds have told which cases to run under the others. An exercise of kernels
takes up to five hours of a core: with `--resume FOLDER` every share and formula that is through lies there, and a run
that was cut off goes on from it, on another machine of the same tier too.
"""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from autograder import bank
from autograder.bank import Entry, Result, formulas, orders
from autograder.bank.recording import keep_apart, means
from autograder.call import in_ranks
from autograder.call.in_process import examine
from autograder.exercise import Call, Case, Draw, Exercise, get
from autograder.exercises.telling import Telling
from autograder.inside.calling import describe, quiet, through
from autograder.inside.worker import copy_returned
from autograder.judging.score import credit
from autograder.judging.verdict import Verdict, told_apart
from autograder.referee.rounds import Round
from course_lib import device

FIRST = 3  # seeds under which every case runs
LIMIT_S = 60.0  # for one submission and one seed; a share of the seeds may take what all of them may
SHARE = 10  # seeds that a process judges at least, but for the last
KEPT_SHARE = 2  # the same where what is through is kept: a run that is cut off loses little


@dataclass(frozen=True)
class Seen:
    """What became of a submission under some seeds."""

    rights: tuple[dict[str, bool], ...] = ()  # a seed: which cases
    fine: dict[str, tuple[str, ...]] = field(default_factory=dict)  # outputs of wrong cases that are right
    notes: tuple[str, ...] = ()  # a seed: a reason why it earns nothing, or ""


@dataclass(frozen=True)
class Share(Entry):
    """A submission and the seeds of it that one process judges, after others."""

    seeds: range = range(0)
    before: Seen = Seen()


@dataclass(frozen=True)
class Drawn(Result):
    points: tuple[float, ...] = ()  # a seed
    out_of: float = 0.0
    seen: Seen = Seen()
    refused: str = ""  # what was wrong with a right one, and under which seed

    @property
    def differing(self) -> list[tuple[str, int]]:
        """Cases that are right under some seeds only, and under how many."""
        right_under = Counter(name for one in self.seen.rights for name, right in one.items() if right)
        return [(name, n) for name, n in right_under.items() if n < len(self.seen.rights)]

    @property
    def faults(self) -> list[str]:
        """What is not as it should be, a sentence each."""
        if self.skipped:
            return []
        if self.refused:
            return [f"{self.entry} was refused: {self.refused}"]
        if not self.points:
            return [f"{self.entry} could not be judged: {self.says}"]
        all_of_it = sum(points == self.out_of for points in self.points)
        said = []
        if self.entry.kind == "mistakes" and all_of_it:
            said.append(f"{self.entry} earns everything under {all_of_it} of {len(self.points)} seeds")
        if len(counts := Counter(self.points)) > 1:
            least, most, usual = min(counts), max(counts), counts.most_common(1)[0][1]
            cases = ", ".join(f"“{name}” right under {n}" for name, n in self.differing)
            others = len(self.points) - usual
            said.append(f"{self.entry} earns {least:g} to {most:g}, unlike usual under {others} seeds: {cases}")
        return said


class Shelf:
    """What is through of an exercise, if there is a folder for it; a changed exercise begins anew."""

    def __init__(self, folder: Path | None, name: str):
        self.folder, self._means = folder, means("bank_seeds", name) if folder else ""

    def take(self, *key: Any) -> Any:
        """What was put there, or None."""
        path = self._path(key)
        return pickle.loads(path.read_bytes()) if path and path.exists() else None

    def put(self, found: Any, *key: Any) -> None:
        if path := self._path(key):
            path.parent.mkdir(parents=True, exist_ok=True)
            written = path.with_suffix(f".{os.getpid()}")
            written.write_bytes(pickle.dumps(found))
            written.replace(path)  # whole, or not there

    def _path(self, key: tuple) -> Path | None:
        told = repr((self._means, device.TIER, *key)).encode()
        return self.folder and self.folder / f"{hashlib.sha256(told).hexdigest()[:24]}.pickle"


def plain(exercise: Exercise) -> bool:
    """Whether a call takes milliseconds: no kernel, no compiler, no ranks."""
    return exercise.kind == "scenario" and not exercise.probe


class Kept:
    """Calls of a case, each drawn once: what is drawn before a process is forked, its children know."""

    def __init__(self, draw: Callable[[Draw], Call]):
        self.draw, self.calls = draw, {}

    def __call__(self, d: Draw) -> Call:
        if d.seed not in self.calls:
            self.calls[d.seed] = self.draw(d)
        return self.calls[d.seed]


def _fills_a_gpu(case: Case) -> bool:
    return device.TIER == "gpu" and case.share > 0


@functools.cache
def undiagnosed(name: str) -> Exercise:
    """The exercise without its mistakes, as nobody asks which it is; what is drawn many times over is kept."""
    exercise = get(name)
    cases = [case for case in exercise.cases if not _fills_a_gpu(case)]
    cases = (replace(c, draw=Kept(c.draw)) if isinstance(c.draw, Telling) else c for c in cases)
    return replace(exercise, mistakes=(), cases=tuple(cases))


def draw_before(name: str, seeds: Iterable[int]) -> None:
    if device.TIER == "gpu":
        return  # to draw there starts CUDA, and who has started it cannot fork: each child draws for itself
    for case in undiagnosed(name).cases:
        if isinstance(case.draw, Kept) and device.TIER in case.tiers:
            for seed in seeds:
                undiagnosed(name).draw(case, seed, device.DEVICE, device.TIER)


def try_seeds(entry: Entry, seed: int, quick: bool, seeds: int) -> Drawn:
    """One submission under `seeds` seeds, from `seed` on, in this process."""
    start, exercise = time.perf_counter(), undiagnosed(entry.exercise)
    module = bank.load(entry)
    left_out = any(case.name == entry.killed_by and _fills_a_gpu(case) for case in get(entry.exercise).cases)
    if left_out or device.TIER not in getattr(module, "TIERS", exercise.tiers):
        return Drawn(entry, skipped=True)
    share = entry if isinstance(entry, Share) else Share(**vars(entry), seeds=range(seed, seed + seeds))
    before = share.before.rights
    rights, fine, notes = list(before), dict(share.before.fine), list(share.before.notes)
    points, refused = [], ""
    stay = () if entry.kind == "mistakes" else ("gloo",)  # ranks stay from call to call, as the referee's do
    for number in share.seeds:
        only = _again(entry, exercise, rights)
        with in_ranks.sharing(*stay):
            (right, some), note, why = _judged(entry, exercise, number, only)
        rights.append({**(rights[0] if rights else {}), **right})
        notes.append(note)
        fine |= some
        # Why the first seeds refused it, some cases by themselves may not show.
        nothing = note or (only and all(notes[:FIRST]))
        points.append(0.0 if nothing else credit(exercise, rights[-1], fine))
        if why and entry.kind != "mistakes":
            refused = f"seed {number}: {why}"
            break
    took = time.perf_counter() - start
    seen = Seen(tuple(rights[len(before) :]), fine, tuple(notes[len(before) :]))
    return Drawn(entry, not refused, None, "", took, False, False, tuple(points), exercise.points, seen, refused)


def shared(todo: Iterable[Entry], seed: int, seeds: int, workers: int, least: int = SHARE) -> list[Entry]:
    """The same submissions, each right one in a share for each process, or fewer; of a mistake the first seeds."""
    found: list[Entry] = []
    for entry in todo:
        if entry.kind != "mistakes":
            found += _shares(entry, range(seed, seed + seeds), workers, least=least)
        elif plain(get(entry.exercise)):
            found.append(entry)
        else:
            found.append(Share(**vars(entry), seeds=range(seed, seed + min(FIRST, seeds))))
    return found


def _shares(entry: Entry, seeds: range, workers: int, before: Seen = Seen(), least: int = SHARE) -> list[Share]:
    step = max(least, -(-len(seeds) // workers))
    return [
        Share(**_entry(entry), seeds=seeds[first : first + step], before=before) for first in range(0, len(seeds), step)
    ]


def _entry(one: Entry) -> dict:
    return {name.name: getattr(one, name.name) for name in fields(Entry)}


def by_its_formula(first: Drawn, seed: int) -> Drawn | None:
    """A mistake under the seeds behind its first, where a formula stands for it."""
    exercise, seen = undiagnosed(first.entry.exercise), first.seen
    # A formula says which cases are right, and nothing of single outputs.
    if exercise.parts or any(seen.notes):
        return None
    many = stands_for(exercise.name, first.entry.mistake, seen.rights, seed)
    if not many:
        return None
    rights = tuple({**seen.rights[0], **right} for right in many[len(seen.rights) :])
    points = tuple(credit(exercise, right, seen.fine) for right in rights)
    return replace(first, points=points, seen=replace(seen, rights=rights), seconds=0.0)


def whole(drawn: Iterable[Drawn]) -> list[Drawn]:
    """One result a submission."""
    found: dict[str, Drawn] = {}
    for one in drawn:
        if (other := found.get(str(one.entry))) is not None:
            says = other.says or one.says
            points = () if says else other.points + one.points
            seen = replace(one.seen, rights=other.seen.rights + one.seen.rights)
            one = replace(one, points=points, says=says, seen=seen, refused=other.refused or one.refused)
        found[str(one.entry)] = one
    return list(found.values())


# (exercise, first seed) -> formulas, some of one name, and what each gets right under each seed
FOUND: dict[tuple[str, int], list[tuple[str, Sequence[dict[str, bool]]]]] = {}


def compute_before(name: str, seeds: Sequence[int], shelf: Shelf | None = None) -> None:
    """What each formula of an exercise gets right under each seed; its children know that too."""
    labels = [label for label, _ in _answers(name, seeds[0])]
    if device.TIER != "gpu" and labels:
        rights = _rights_of_all(name, seeds, shelf=shelf)
        FOUND[name, seeds[0]] = list(zip(labels, zip(*rights, strict=True), strict=True))


def stands_for(name: str, mistake: str, seen: Sequence[dict[str, bool]], seed: int) -> Sequence[dict[str, bool]] | None:
    """What a formula of that mistake gets right under all seeds, where under the first ones it is what was seen."""
    for label, many in FOUND.get((name, seed), ()):
        if label.partition(" of ")[0] == mistake and list(many[: len(seen)]) == list(seen):
            return many
    return None


def _again(entry: Entry, exercise: Exercise, seen: list[dict[str, bool]]) -> tuple[str, ...]:
    """The cases to run under the next seed; () for all."""
    if plain(exercise) or entry.kind != "mistakes" or len(seen) < FIRST:
        return ()
    differing = [name for name in seen[0] if len({one[name] for one in seen}) > 1]
    return (*entry.killers, *differing)


def _judged(entry: Entry, exercise: Exercise, seed: int, only: tuple[str, ...]) -> tuple[tuple[dict, dict], str, str]:
    """What was right, a reason why it earns nothing, and what is wrong with a submission that is right."""
    function = entry.function  # loaded anew: what it keeps from one grading run, no other knows
    verdict = examine(exercise, function, seed, only=only)
    right, fine = told_apart(verdict.cases)
    why = _refusal(verdict)
    if not why and exercise.asks_for_kernels and entry.kind != "mistakes":
        cases = [case for case in exercise.cases if case.name in right and not case.part]
        case = cases[seed % len(cases)]
        why = twice(exercise, case, seed, function)
        why = why and f"called twice in a row in “{case.name}”: {why}"
    # Last: this loads the answer again, which ends the operators that `function` defined.
    if not why and entry.kind != "mistakes" and exercise.kind != "scenario":
        why = _refusal(examine(replace(exercise, alike=False), entry.function, seed, only=_of_a_check(exercise)))
        why = why and f"in sizes of a notebook's check: {why}"
    return (right, fine), verdict.note, why


def _refusal(verdict: Verdict) -> str:
    wrong = next((case for case in verdict.cases if not case.right), None)
    return f"“{wrong.name}” ({wrong.sizes}): {wrong.why}" if wrong else verdict.note


def _of_a_check(exercise: Exercise) -> list[str]:
    return [case.name for case in exercise.cases if case.live and case.runs_here]


def twice(exercise: Exercise, case: Case, seed: int, function: Callable) -> str:
    """What is wrong after two calls of the same sizes in a row, or "": the referee's check, in this process."""
    round_ = Round(exercise, case, seed, 2, device.DEVICE, device.TIER)
    try:
        for args in round_.calls:
            values, returns = list(args.values()), len(exercise.returns)
            with quiet():
                value = through(exercise.probe, function)(*values[: len(values) - returns])
            if returns:
                copy_returned(value, values[-returns:])
        return round_.wrong()
    except Exception as error:
        return f"raised {describe(error)}"
    finally:
        round_.close()


def main(
    names: Iterable[str],
    seed: int,
    seeds: int,
    quick: bool = False,
    record: str | None = None,
    resume: Path | None = None,
) -> int:
    """Judge an exercise at a time, print what is not as it should be, and keep how many seeds that were.

    quick: only formulas of mistakes.
    """
    todo, look, wrong = bank.entries(names), by_formula if quick else partial(judged, resume=resume), 0
    for name in dict.fromkeys(entry.exercise for entry in todo):
        faults = look(name, seed, seeds)
        wrong += bool(faults)
        if record and device.TIER in get(name).tiers:
            row = {"exercise": name, "seeds": seeds, "first": seed, "tier": device.TIER, "faults": len(faults)}
            keep_apart("bank_seeds", [row | {"found": "; ".join(faults)}], record)
    return 1 if wrong or not todo else 0


def by_formula(name: str, seed: int, seeds: int) -> list[str]:
    """Mistakes whose formulas earn other points under other seeds, and orders of the honest answer, a sentence each.

    No submission runs, so a seed takes seconds, or minutes where rows are many, and no GPU is needed for the cases of
    one: there types and sizes may differ, and so what a case shows. A formula may vary of which the bank has no
    mistake: one of a block of a size that nobody chose, say. What is counted output by output, formulas do not tell.
    """
    began, exercise = time.perf_counter(), undiagnosed(name)
    if not (count := len(_answers(name, seed))):
        print(f"{name}: no formulas to look at", flush=True)
        return []
    torch.set_num_threads(1)
    draw_before(name, range(seed, seed + seeds))
    faults = []
    for tier in exercise.tiers[:1] if plain(exercise) else exercise.tiers:
        seen = _rights_of_all(name, range(seed, seed + seeds), tier)
        for number, (label, _) in enumerate(_answers(name, seed)):
            right = [one[number] for one in seen]
            points = [credit(exercise, one, {}) for one in right]
            under = Counter(case for one in right for case, fine in one.items() if fine)
            least = 0 if label == orders.RIGHT else 1
            varying = [case for case in right[0] if least <= under[case] < seeds]
            if varying and (not least or len(set(points)) > 1):
                cases = ", ".join(f"“{case}” right under {under[case]}" for case in varying)
                faults.append(f"{label} earns {min(points):g} to {max(points):g} in cases of the {tier}: {cases}")
    took = time.perf_counter() - began
    print(f"{name}: {count} formulas under {seeds} seeds in {took:.0f} s, {len(faults)} vary", flush=True)
    for fault in faults:
        print(f"  {fault}", flush=True)
    return faults


def _rights_of_all(
    name: str, seeds: Iterable[int], tier: str = "", shelf: Shelf | None = None
) -> list[list[dict[str, bool]]]:
    """Of each seed what each formula gets right."""
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), fork) as pool:  # who dies is an error; a Pool would wait
        return list(pool.map(partial(_rights, name, tier, shelf or Shelf(None, name)), seeds))


def _rights(name: str, tier: str, shelf: Shelf, seed: int) -> list[dict[str, bool]]:
    """What each formula gets right under a seed."""
    if (found := shelf.take("answers", tier, seed)) is None:
        drawn = formulas.under(undiagnosed(name), seed, tier)
        found = [drawn.right(answer) for _, answer in _answers(name, seed)]
        shelf.put(found, "answers", tier, seed)
    return found


def _answers(name: str, seed: int) -> list[tuple[str, formulas.Answer]]:
    """What is computed in place of submissions; what is counted output by output, formulas of mistakes do not tell."""
    exercise = undiagnosed(name)
    known = () if exercise.parts else formulas.answers(get(name).mistakes)
    return [*known, *orders.honest(exercise, seed)]


def judged(name: str, seed: int, seeds: int, todo: list[Entry] | None = None, resume: Path | None = None) -> list[str]:
    """What is not as it should be in one exercise, a sentence each, of all its submissions or of `todo`."""
    began, todo = time.perf_counter(), bank.entries([name]) if todo is None else todo
    shelf, least = Shelf(resume, name), KEPT_SHARE if resume else SHARE
    torch.set_num_threads(1)  # or the children would wait for threads that only this process has
    draw_before(name, range(seed, seed + seeds))
    if not plain(get(name)) and seeds > FIRST and any(entry.kind == "mistakes" for entry in todo):
        compute_before(name, range(seed, seed + seeds), shelf)
    task, workers = partial(try_seeds, seeds=seeds), bank.workers_at_once()
    shares = seeds if resume else workers  # where they are kept they are small, however many processes there are

    def tried(some: list[Entry]) -> list[Drawn]:
        taken = [(one, shelf.take(*_key(one, seed, seeds))) for one in some]
        through = [replace(found, entry=one) for one, found in taken if found]
        todo = [one for one, found in taken if not found]
        for one in bank.run(todo, seed, workers=workers, limit_s=LIMIT_S * seeds, task=task):
            if isinstance(one, Drawn):
                shelf.put(one, *_key(one.entry, seed, seeds))
            through.append(one if isinstance(one, Drawn) else Drawn(one.entry, says=one.says))
        return through

    found, later = tried(shared(todo, seed, seeds, shares, least)), []
    for first in [one for one in found if one.points and len(one.points) < seeds and one.entry.kind == "mistakes"]:
        if formula := by_its_formula(first, seed):
            found.append(formula)
        else:
            later += _shares(first.entry, range(seed + FIRST, seed + seeds), shares, first.seen, least)
    drawn = whole([*found, *tried(later)])
    faults = [fault for one in drawn for fault in one.faults]
    took = time.perf_counter() - began
    print(f"{name}: {len(drawn)} submissions under {seeds} seeds in {took:.0f} s, {len(faults)} faults", flush=True)
    for fault in faults:
        print(f"  {fault}", flush=True)
    return faults


def _key(entry: Entry, seed: int, seeds: int) -> tuple:
    """What tells one share of a submission from others: its seeds, and what was seen under others before."""
    share = entry if isinstance(entry, Share) else Share(**vars(entry), seeds=range(seed, seed + seeds))
    return str(share), share.seeds, share.before
