"""The cases of an exercise, tried one after the other, or shared out to several workers of the same sandbox.

On a GPU, compiling takes longer than everything else, and one process compiles one kernel at a time. So the cases of
exercises that ask for kernels are shared. For these the audit checks that no call depends on the one before. Sharing
changes no verdict: when one of several workers is lost, or its device, one worker alone tries everything again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from autograder.call.trial import judged_part
from autograder.exercise import Exercise
from autograder.judging.judge import Trial, is_stub, not_tried
from autograder.judging.outcome import NOT_TRIED, Outcome
from autograder.referee.room import Worker
from course_lib import device

MOST = 6
CASES = 4  # at least, for each worker: each has a device to open first
CORES = 2  # of the host, for each worker
large = threading.Lock()  # two large cases at once might not fit into the memory of the GPU
MEMORY = 12 << 30  # of the GPU, for each worker


class Disturbed(RuntimeError):
    """One of several workers was lost or is of no use; what the others found does not count."""


def several() -> int:
    """How many workers this machine has room for."""
    if device.DEVICE != "cuda":
        return 1
    return max(1, min(MOST, len(os.sched_getaffinity(0)) // CORES, device.memory_bytes() // MEMORY))


def tried(worker: Worker, exercise: Exercise, seed: int, lanes: int) -> list[Trial]:
    """Every case of this tier. When the worker is lost, the cases that are left count as not tried."""
    cases = [case for case in exercise.cases if case.runs_here]
    found: dict[int, Trial] = {}

    def walk(one: Worker, numbers: Sequence[int]) -> None:
        if one is not worker and one.load(exercise.entry):
            raise Disturbed
        if exercise.asks_for_kernels:  # others may have no torch, or no use for a GPU
            one.open()
        for number in numbers:
            if one.lost or stub(found):
                return
            call = exercise.draw(cases[number], seed, device.DEVICE, device.TIER)
            outcome = one.attempt(exercise, cases[number], call, watched=exercise.asks_for_kernels)
            found[number] = cases[number], judged_part(call, cases[number]), outcome

    small = [number for number, case in enumerate(cases) if case.live]
    if exercise.asks_for_kernels:
        shared(worker, small, lanes, walk, found)
    with large:
        walk(worker, [number for number in range(len(cases)) if number not in found])
    return in_order(worker, exercise, seed, cases, found)


def shared(worker: Worker, numbers: Sequence[int], lanes: int, walk: Callable, found: dict[int, Trial]) -> None:
    """Cases walked by this worker and new ones beside it, where there are enough; Disturbed when one is lost."""
    lanes = min(lanes, len(numbers) // CASES)
    if lanes < 2:
        return
    worker.helpers = [Worker(worker.room) for _ in range(lanes - 1)]
    workers = [worker, *worker.helpers]
    for one in workers:
        one.beside = lanes - 1
    with ThreadPoolExecutor(lanes) as pool:
        walks = [pool.submit(walk, one, numbers[lane::lanes]) for lane, one in enumerate(workers)]
    for done in walks:
        done.result()
    if any(one.lost for one in workers) or any(outcome.fault for _, _, outcome in found.values()):
        raise Disturbed
    for one in worker.helpers:
        one.hang_up()


def stub(found: dict[int, Trial]) -> bool:
    """Whether the first case was tried, and is a stub. No other case decides that, whoever tries it first."""
    return 0 in found and is_stub([found[0]])


def in_order(worker: Worker, exercise: Exercise, seed: int, cases: Sequence, found: dict[int, Trial]) -> list[Trial]:
    """The trials of all cases; those that a stub or a lost process left out count as not tried."""
    if stub(found):
        return [found[0], *map(not_tried, cases[1:])]
    trials: list[Trial] = []
    lost = f"its process was lost in \u201c{cases[max(found)].name}\u201d: {worker.lost}"
    for number, case in enumerate(cases):
        if number not in found:
            call = exercise.draw(case, seed, device.DEVICE, device.TIER)
            found[number] = case, call, Outcome(error=f"{NOT_TRIED}: {lost}")
        trials.append(found[number])
    return trials
