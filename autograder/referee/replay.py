"""Proof of work by construction: the code around the kernels never sees a value that is judged.

    recorder  a worker with the submission's cells. It is called with noise, its kernels do not run; it writes down
              what it launches and moves (inside/recording.py), and is ended.
    player    a worker that has run nothing of the submission. It is given the true values and those programs, and
              carries them out with kernels made from the text (inside/playing.py, inside/kernels.py).

What is judged is what the player left behind. NumPy, torch's operators, threads and forged reports have only noise to
work on. What has no such form is judged the other way (audit.py), and a person looks at it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from autograder.call.trial import judged_part
from autograder.exercise import Call, Case, Exercise
from autograder.inside.calling import quiet
from autograder.judging import proof
from autograder.judging.judge import Trial, case_verdict, judge
from autograder.judging.outcome import NOT_TRIED, Outcome
from autograder.judging.verdict import Verdict
from autograder.referee import audit, lanes
from autograder.referee.reading import added, replacing
from autograder.referee.room import Room, Worker
from course_lib import device

NO_KERNEL = "NoKernel: "
Recorded = tuple[Outcome, dict]  # how a call went, and its program


class Unwritable(RuntimeError):
    """The calls of a submission have no form as programs; why."""


def judged(room: Room, exercise: Exercise, seed: int, worker: Callable, several: int = 1) -> Verdict:
    """The verdict on an exercise that asks for kernels. Unwritable: it has to be judged in another way.

    worker: makes a worker of the room, in a `with`. several: so many players share the cases.
    """
    cases = [case for case in exercise.cases if case.runs_here]
    with worker(room) as recorder:
        why_not = recorder.load(exercise.entry)
        if why_not:
            return Verdict(exercise.name, device.TIER, seed, 0.0, exercise.points, (), note=why_not)
        recorder.open()
        recorded = _recorded(recorder, exercise, cases, seed)
        largest, was_lost = _largest(cases, recorded), recorder.lost
        twice = [] if largest is None else [cases[largest]] * 2
        again = _recorded(recorder, exercise, twice, seed) if not was_lost else []
    if was_lost and twice:  # in another case, which is no reason why this one should not be called twice
        with worker(room) as recorder:
            recorder.load(exercise.entry)
            recorder.open()
            again = _recorded(recorder, exercise, twice, seed)
    refused = _refused(exercise, recorded)
    unwritable = next((str(program["why_not"]) for _, program in recorded if program.get("why_not")), "")
    with worker(room) as player:
        trials = _played(player, exercise, cases, seed, recorded, several)
        with quiet():
            verdict = judge(exercise, device.TIER, seed, trials)
        if unwritable and (verdict.points or all(case.right or not case.errors for case in verdict.cases)):
            raise Unwritable(unwritable[:300])  # what was carried out does not speak against it
        if verdict.points and not refused:
            refused = _twice(player, exercise, cases[largest], seed, again)
        if verdict.points and not refused and device.TIER == "interpreter":
            refused, unsure = audit.compiled(player)
            verdict = _held(verdict, unsure) if unsure else verdict
    if refused:
        return replace(verdict, points=0.0, note=verdict.note or refused)
    brought = proof.of_tables(program for _, program in (*recorded, *again)) or proof.of_counts(exercise, trials)
    if verdict.points and brought:
        return _held(verdict, brought)
    kernels = set().union(*(proof.kernels_of(program) for _, program in recorded))
    found = []
    if verdict.points and exercise.deterministic:
        renamed = {one for _, program in recorded for one in proof.atomics_of(program)}
        found = [*added(room.submission.cells, kernels), *sorted(renamed)]
    if verdict.points and exercise.probe:  # which looks on in the process of the submission
        found = [*found, *replacing(room.submission.cells)]
    return _held(verdict, proof.of_text(found)) if found else verdict


def noise(call: Call, public: Sequence[str] = ()) -> Call:
    """The call with other values in all tensors; only those of `public` arguments stay."""
    tensors = {n: v for n, v in call.args.items() if isinstance(v, torch.Tensor) and n not in public}
    return replace(call, args=call.args | {name: _noise(value) for name, value in tensors.items()})


def _noise(like: torch.Tensor) -> torch.Tensor:
    rng = torch.Generator(like.device).manual_seed(random.SystemRandom().getrandbits(62))
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    if like.is_floating_point():
        return made.normal_(generator=rng)
    return made.random_(0, 2 if like.dtype == torch.bool else 8, generator=rng)


def _recorded(recorder: Worker, exercise: Exercise, cases: Sequence[Case], seed: int) -> list[Recorded]:
    """Each case as a program, until one is lost or the first is a stub. One without such a form is not tried."""
    found, kernels = [], {}
    for case in cases:
        call = noise(exercise.draw(case, seed, device.DEVICE, device.TIER), exercise.public)
        outcome, program = recorder.record(exercise, call)
        if not recorder.lost and not proof.is_program(program):
            raise Unwritable("what came back is no program")
        if program.get("why_not"):
            outcome = replace(outcome, error=f"{NOT_TRIED}: {program['why_not'][:300]}")
        kernels |= program.get("kernels", {})  # every program tells of all, so that any player can carry it out
        found.append((outcome, program | {"kernels": kernels}))
        if recorder.lost or (len(found) == 1 and outcome.not_written):
            break
    return found


def _played(player: Worker, exercise: Exercise, cases, seed: int, recorded, several: int) -> list[Trial]:
    """The trials of all cases: what the players left behind, or what went wrong before."""
    found: dict[int, Trial] = {}

    def walk(one: Worker, numbers: Iterable[int]) -> None:
        one.read()
        for number in numbers:
            if one.lost or lanes.stub(found):
                return
            case, (outcome, program) = cases[number], recorded[number]
            call = exercise.draw(case, seed, device.DEVICE, device.TIER)
            if not outcome.error:
                (outcome,) = one.play(exercise, case, [call], [program])
                if (outcome.error or "").startswith(NO_KERNEL):
                    raise Unwritable(outcome.error.removeprefix(NO_KERNEL))
            found[number] = case, judged_part(call, case), outcome

    small = [number for number in range(len(recorded)) if cases[number].live]
    if several > 1 and proof.independent([program for _, program in recorded]):
        lanes.shared(player, small, several, walk, found)
    with lanes.large:
        walk(player, [number for number in range(len(recorded)) if number not in found])
    return lanes.in_order(player, exercise, seed, cases, found)


def _largest(cases: Sequence[Case], recorded: Sequence[Recorded]) -> int | None:
    """The call with the most programs in one launch, of those that did not fail; a huge one if there is no other."""
    sizes = {
        number: (cases[number].live, proof.largest_launch(program))
        for number, (outcome, program) in enumerate(recorded)
        if not outcome.error
    }
    return max(sizes, key=sizes.get, default=None)


def _twice(player: Worker, exercise: Exercise, case: Case, seed: int, again: Sequence[Recorded]) -> str:
    """Two calls of the same sizes in a row, both looked at afterwards; what is wrong, or ''."""
    words = f"Called twice in a row with the same sizes, in \u201c{case.name}\u201d: "
    if errors := [outcome.error for outcome, _ in again if outcome.error]:
        return f"{words}raised {errors[0]}"
    values, known = random.SystemRandom(), exercise.draw(case, seed, device.DEVICE, device.TIER).args
    drawn = [exercise.draw(case, seed, device.DEVICE, device.TIER, values=values.getrandbits(62)) for _ in again]
    calls = [replace(one, args=one.args | {name: known[name] for name in exercise.public}) for one in drawn]
    outcomes = player.play(exercise, case, calls, [program for _, program in again])
    with quiet():
        for call, outcome in zip(calls, outcomes, strict=True):
            verdict = case_verdict(exercise, device.TIER, seed, (case, judged_part(call, case), outcome))
            if not verdict.right:
                return words + verdict.why
    return ""


def _refused(exercise: Exercise, recorded: Sequence[Recorded]) -> str:
    """Why right outputs would earn nothing: torch computed, where only kernels should."""
    total: Counter[str] = Counter()
    for _, program in recorded:
        total.update(proof.operators_of(program))
    return proof.of_operators(exercise, total)


def _held(verdict: Verdict, why: str) -> Verdict:
    return replace(verdict, points=0.0, held=verdict.points, note=f"The points wait for a person. {why}", pending=True)
