"""Proof of work: what earned the points was the submission's own kernels, launched in the calls that were judged.

Every case was watched while it ran. Here one of them is called again, with other values and the kernels switched off
in the text of the submission: wholly, and for a half of their programs. What all that means, `judging/proof` says.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace

from autograder.call.trial import judged_part
from autograder.exercise import Case, Exercise, of_unit
from autograder.inside.calling import quiet
from autograder.judging.judge import Trial, case_verdict
from autograder.judging.proof import broken, judge_work, merged, of_compiler, of_text, telling
from autograder.judging.verdict import CaseVerdict, Verdict
from autograder.referee import everyday
from autograder.referee.ablation import emptied, halved, not_found
from autograder.referee.meeting import handed_on, meeting
from autograder.referee.reading import added, past_graphs, replacing, suspicious
from autograder.referee.room import Lost, Room, Worker
from autograder.referee.rounds import Round
from autograder.referee.submission import Cell
from course_lib import device

KERNELS = 16  # of a submission that are switched off one by one; more are for a person
BESIDE = "beside a kernel"  # what this says is about exercises that ask for kernels
OF_GRAPHS = tuple(f"autograder.inside.probes.{probe}" for probe in ("towers:compiled", "hoisting:hoisted"))
COMPILE_S = 40.0  # for the compiler's first step, which takes 0.2 s for each way to launch a kernel


def audited(room: Room, worker: Worker, exercise: Exercise, verdict: Verdict, trials: Sequence[Trial]) -> Verdict:
    """The verdict, unless its points were not earned or a person has to look. Ends the worker."""
    right = [trial for trial, case in zip(trials, verdict.cases, strict=True) if case.right and not trial[0].part]
    right = right or [trial for trial, case in zip(trials, verdict.cases, strict=True) if case.right]
    case = right[telling([outcome.seen or {} for _, _, outcome in right])][0]
    again = _twice(worker, exercise, case, verdict.seed)
    uncompiled, unsure = compiled(worker) if device.TIER == "interpreter" and not again else ("", "")
    worker.end()
    if uncompiled:
        return replace(verdict, points=0.0, note=uncompiled)
    if again:
        note = f"Called twice in a row with the same sizes, in \u201c{case.name}\u201d: {again}"
        return replace(verdict, points=0.0, note=note)
    seen = merged(outcome.seen or {} for _, _, outcome in right)
    cells, kernels = room.submission.cells, set(seen["kernels"])
    trial = _SwitchedOff(room, exercise, case, verdict.seed)
    salt = random.SystemRandom().getrandbits(30)
    empty = trial.of(emptied(cells, kernels))
    half = broken(trial.of(halved(cells, kernels, salt)))
    if half == "right":  # by luck, when all the work lay in the other half
        half = broken(trial.of(halved(cells, kernels, ~salt)))
    elif half == "broken" and 1 < len(kernels) <= KERNELS:  # what one kernel lacks, another may spread over everything
        alone = (broken(trial.of(halved(cells, {kernel}, salt))) for kernel in sorted(kernels))
        half = "partly" if "partly" in alone else half
    trial.worker.end()
    missing = not_found(cells, kernels)
    found = suspicious(cells, *entries(exercise)) + (added(cells, kernels) if exercise.deterministic else [])
    refused, review = judge_work(exercise, seen, empty.right, half, missing, found)
    review = " ".join(filter(None, [unsure, review]))
    if refused:
        return replace(verdict, points=0.0, note=refused)
    if review:
        note = f"The points wait for a person. {review}"
        return replace(verdict, points=0.0, held=verdict.points, note=note, pending=True)
    return verdict


def seen_from_within(room: Room, exercise: Exercise, verdict: Verdict, ranks: bool = False) -> Verdict:
    """The verdict on an exercise that a probe looks at in the process of its code, unless that may have replaced it.

    ranks: there are several such processes, which may have met elsewhere than on the network that is watched. Of other
    answers in tensors the text is read as that of a kernel: no thread and no private part of torch goes past the probe.
    """
    cells = room.submission.cells
    found = [*replacing(cells), *(meeting(cells) if ranks else ())]
    if exercise.probe in OF_GRAPHS:
        found += past_graphs(cells)
    if exercise.kind == "kernel":
        found += [*everyday.without(suspicious(cells, *entries(exercise)), cells), *handed_on(cells)]
    text = of_text(sorted(set(found)))
    if not text:
        return verdict
    why = "What the course's own code saw of this answer, it saw in the process of the answer, which may change it."
    note = f"The points wait for a person. {why} {text}"
    return replace(verdict, points=0.0, held=verdict.points, note=note, pending=True)


def past_the_clock(cells: tuple[Cell, ...], exercise: Exercise) -> str:
    """What a person should look at before an answer is timed that computes as it likes: what tells a watched call from
    a timed one, and what leads there."""
    found = [*everyday.without(suspicious(cells, *entries(exercise)), cells), *handed_on(cells)]
    return of_text([one for one in found if not one[2].endswith(BESIDE)])


def entries(exercise: Exercise) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The function that should compute in kernels, the others of its unit, and the operators that may compute too.

    What only the others lead to is read when they are judged.
    """
    others = frozenset(one.entry for one in of_unit(exercise.name.partition(".")[0])) - {exercise.entry}
    judged = frozenset([exercise.entry]) if exercise.asks_for_kernels else frozenset()
    return judged, others, frozenset(name.removeprefix("aten::") for name in exercise.allowed)


def _twice(worker: Worker, exercise: Exercise, case: Case, seed: int) -> str:
    """Two calls of the same sizes in a row, both looked at afterwards; what is wrong, or ''."""
    round_ = Round(exercise, case, seed, 2, device.DEVICE, device.TIER)
    try:
        worker.plan(round_)
        report = worker.go(round_, 2 * worker.room.patience.call_s)
        return f"raised {str(report['error'])[:300]}" if report.get("error") else round_.wrong()
    except Lost as error:
        return str(error)
    finally:
        worker.close(round_.slabs)


def compiled(worker: Worker) -> tuple[str, str]:
    """Whether a compiler takes what the interpreter ran: (why there are no points or "", why a person looks or "")."""
    began = time.perf_counter()
    try:
        report = worker.ask("compile", (), COMPILE_S)
    except Lost as error:
        return of_compiler({"unknown": [error]})
    finally:
        worker.room.note(time.perf_counter() - began)
    return of_compiler(report)


class _SwitchedOff:
    """Changed copies of the submission, tried on one case with fresh values."""

    def __init__(self, room: Room, exercise: Exercise, case: Case, seed: int):
        self.worker, self.exercise, self.case, self.seed = Worker(room), exercise, case, seed

    def of(self, cells: Sequence[Cell]) -> CaseVerdict:
        submission = replace(self.worker.room.submission, cells=tuple(cells))
        why_not = "" if self.worker.lost else self.worker.load(self.exercise.entry, submission)
        if why_not or self.worker.lost:
            return CaseVerdict(self.case.name, "", False, why_not or self.worker.lost)
        values = random.SystemRandom().getrandbits(62)
        call = self.exercise.draw(self.case, self.seed, device.DEVICE, device.TIER, values=values)
        outcome = self.worker.attempt(self.exercise, self.case, call)
        with quiet():
            return case_verdict(
                self.exercise, device.TIER, self.seed, (self.case, judged_part(call, self.case), outcome)
            )
