"""The bank under many seeds: the same answer earns the same points whatever is drawn.

Of every submission the points under each seed are compared. A right one must earn all of them under every seed, a
mistake never all of them, and the points of none may vary.

An exercise of plain data is judged wholly under every seed. Elsewhere a call takes up to seconds, so a mistake runs on
all cases under the first seeds only; then on the case that catches it and on those where the first seeds disagree.
Every other case counts as before.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from autograder import bank
from autograder.bank import Entry, Result
from autograder.call.in_process import examine
from autograder.exercise import Case, Exercise, get
from autograder.inside.calling import describe, quiet, through
from autograder.inside.worker import copy_returned
from autograder.judging.score import credit
from autograder.referee.rounds import Round
from course_lib import device

FIRST = 3  # seeds under which every case runs
LIMIT_S = 60.0  # for one submission and one seed


@dataclass(frozen=True)
class Drawn(Result):
    points: tuple[float, ...] = ()  # a seed
    out_of: float = 0.0
    differing: tuple[tuple[str, int], ...] = ()  # cases that are right under some seeds only, and under how many
    refused: str = ""  # what was wrong with a right one, and under which seed

    @property
    def faults(self) -> list[str]:
        """What is not as it should be, a sentence each."""
        if self.skipped:
            return []
        if not self.points:
            return [f"{self.entry} could not be judged: {self.says}"]
        if self.refused:
            return [f"{self.entry} was refused: {self.refused}"]
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


def plain(exercise: Exercise) -> bool:
    """Whether a call takes milliseconds: no kernel, no compiler, no ranks."""
    return exercise.kind == "scenario" and not exercise.probe


def try_seeds(entry: Entry, seed: int, quick: bool, seeds: int) -> Drawn:
    """One submission under `seeds` seeds, from `seed` on, in this process."""
    start, exercise = time.perf_counter(), replace(get(entry.exercise), mistakes=())  # nobody asks which it is
    module = bank.load(entry)
    if device.TIER not in getattr(module, "TIERS", exercise.tiers):
        return Drawn(entry, skipped=True)
    seen: list[dict[str, bool]] = []
    points, refused = [], ""
    for number in range(seed, seed + seeds):
        right, note, why = _judged(entry, exercise, number, _again(entry, exercise, seen))
        seen.append({**(seen[0] if seen else {}), **right})
        points.append(0.0 if note else credit(sum(seen[-1].values()), len(seen[-1]), exercise.points))
        if why and entry.kind != "mistakes":
            refused = f"seed {number}: {why}"
            break
    right_under = Counter(name for one in seen for name, right in one.items() if right)
    differing = tuple((name, n) for name in seen[0] if 0 < (n := right_under[name]) < len(seen))
    took = time.perf_counter() - start
    return Drawn(entry, not refused, None, "", took, False, False, tuple(points), exercise.points, differing, refused)


def _again(entry: Entry, exercise: Exercise, seen: list[dict[str, bool]]) -> tuple[str, ...]:
    """The cases to run under the next seed; () for all."""
    if plain(exercise) or entry.kind != "mistakes" or len(seen) < FIRST:
        return ()
    differing = [name for name in seen[0] if len({one[name] for one in seen}) > 1]
    return (entry.killed_by, *differing)


def _judged(entry: Entry, exercise: Exercise, seed: int, only: tuple[str, ...]) -> tuple[dict[str, bool], str, str]:
    """Which cases were right, a reason why they earn nothing, and what is wrong with a submission that is right."""
    function = entry.function  # loaded anew: what it keeps from one grading run, no other knows
    verdict = examine(exercise, function, seed, only=only)
    right = {case.name: case.right for case in verdict.cases}
    why = next((f"“{case.name}” ({case.sizes}): {case.why}" for case in verdict.cases if not case.right), "")
    why = why or verdict.note
    if not why and exercise.asks_for_kernels and entry.kind != "mistakes":
        cases = [case for case in exercise.cases if case.name in right and not case.part]
        case = cases[seed % len(cases)]
        why = twice(exercise, case, seed, function)
        why = why and f"called twice in a row in “{case.name}”: {why}"
    return right, verdict.note, why


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


def main(names: Iterable[str], seed: int, seeds: int) -> int:
    todo = bank.entries(names)
    limit_s, workers = LIMIT_S * seeds, len(os.sched_getaffinity(0))
    faults: dict[str, list[str]] = {}
    for result in bank.run(todo, seed, workers=workers, limit_s=limit_s, task=partial(try_seeds, seeds=seeds)):
        drawn = result if isinstance(result, Drawn) else Drawn(result.entry, says=result.says)
        for fault in drawn.faults:
            faults.setdefault(result.entry.exercise, []).append(fault)
            print(fault, flush=True)
    return 1 if faults or not todo else 0
