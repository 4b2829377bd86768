"""Try a function on an exercise in this process: what `check` shows, and what the bank and a rehearsal ask.

Nothing here protects the verdict from the code that is tried; the referee does that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from autograder.call import in_ranks
from autograder.call.trial import attempt, judged_part
from autograder.exercise import Call, Case, Exercise
from autograder.inside.calling import describe, quiet
from autograder.judging import proof
from autograder.judging.judge import Trial, is_stub, judge, no_speed, not_tried
from autograder.judging.outcome import Outcome
from autograder.judging.score import speed_credit
from autograder.judging.verdict import TIERS, SpeedVerdict, Timed, Verdict
from course_lib import device

__all__ = ["examine", "examine_speed"]


def examine(
    exercise: Exercise, function: Callable, seed: int, live: bool = False, only: str | Sequence[str] = ()
) -> Verdict:
    """Run the cases of this tier (`live`: those fast enough for a notebook; `only`: by name) and judge them."""
    only = (only,) if isinstance(only, str) else only
    if device.TIER not in exercise.tiers:
        note = f"This exercise runs on {' and '.join(TIERS[t] for t in exercise.tiers)} only."
        return Verdict(exercise.name, device.TIER, seed, 0.0, exercise.points, (), note=note, pending=True)
    if not callable(function):
        note = f"`{exercise.entry}` should be a function, got {type(function).__name__}."
        return Verdict(exercise.name, device.TIER, seed, 0.0, exercise.points, (), note=note)
    cases = [c for c in exercise.cases if c.runs_here and (c.live or not live) and (not only or c.name in only)]
    compiles = live and device.TIER == "interpreter" and exercise.asks_for_kernels
    if compiles:
        _forget_launches()
    computed: Counter[str] = Counter()
    trials = _trials(exercise, cases, function, seed, computed if exercise.asks_for_kernels else None)
    with quiet():
        verdict = judge(exercise, device.TIER, seed, trials)
    if exercise.without_room:
        verdict = replace(verdict, shows_not=exercise.without_room)
    if verdict.points and (refused := proof.of_operators(exercise, computed)):
        return replace(verdict, points=0.0, note=refused)
    if verdict.points and (why := proof.of_counts(exercise, trials)):
        return replace(verdict, points=0.0, note=f"{why} Grading asks a person.")
    if compiles and verdict.points and (refused := _refused_by_compiler()):
        return replace(verdict, points=0.0, note=refused)
    fault = next((case.name for case, _, outcome in trials if outcome.fault), None)
    return replace(verdict, note=_after_fault(fault)) if fault else verdict


def _forget_launches() -> None:
    from course_lib.interpreter.launch import signatures

    signatures.clear()


def _refused_by_compiler() -> str:
    """Why the compiler does not take what the interpreter ran, as grading sees it, or ""."""
    from autograder.inside.watch import uncompiled

    return proof.of_compiler(uncompiled())[0]


def _trials(
    exercise: Exercise, cases: list[Case], function: Callable, seed: int, computed: Counter | None = None
) -> list[Trial]:
    """Every case. Those after a stub, a fault of the device or lost ranks count as not tried."""
    trials: list[Trial] = []
    if exercise.kind == "distributed":
        tried = _on_ranks(exercise, cases, function, seed)
    else:
        tried = (_tried(exercise, case, function, seed, computed) for case in cases)
    for number, trial in enumerate(tried):
        trials.append(trial)
        case = trial[0]
        if is_stub(trials):
            return [*trials, *map(not_tried, cases[1:])]
        if trials[-1][-1].fault:
            return [*map(_on_host, trials), *(not_tried(c, _after_fault(case.name)) for c in cases[number + 1 :])]
        if trials[-1][-1].lost:  # ranks that hang once hang again, each time until the limit
            why = f"after \u201c{case.name}\u201d, which did not end well."
            return [*trials, *(not_tried(c, why) for c in cases[number + 1 :])]
    return trials


def _on_ranks(exercise: Exercise, cases: list[Case], function: Callable, seed: int) -> Iterator[Trial]:
    calls = [exercise.draw(case, seed, "cpu", device.TIER) for case in cases]
    return zip(cases, calls, in_ranks.attempts(exercise, calls, function))


def _tried(exercise: Exercise, case: Case, function: Callable, seed: int, computed: Counter | None) -> Trial:
    try:
        call = exercise.draw(case, seed, device.DEVICE, device.TIER)
    except RuntimeError as error:
        if not Outcome(error=describe(error)).fault:
            raise
        return case, Call({}, "not drawn"), Outcome(error=describe(error))  # the fault of an earlier call
    outcome = attempt(exercise, call, function, computed)
    call = call if outcome.fault else judged_part(call, case)
    if outcome.error and _on_device(call.args.values()):  # which may not answer any more
        call = replace(call, args={})
    return case, call, judged_part(outcome, case)


def _after_fault(name: str) -> str:
    return f"After the fault in \u201c{name}\u201d the GPU answers this process no more: restart the kernel."


def _on_host(trial: Trial) -> Trial:
    """A trial that can be judged without the device, or one that counts as not tried."""
    case, call, outcome = trial
    if _on_device([*call.args.values(), *outcome.outputs.values()]):
        return not_tried(case, "its result was lost with the device.")
    return trial


def _on_device(values: Iterable) -> bool:
    return any(isinstance(value, torch.Tensor) and value.is_cuda for value in values)


def examine_speed(exercise: Exercise, function: Callable, seed: int) -> SpeedVerdict:
    """Time the function on this GPU, if it is right; without a GPU the points stay pending."""
    blank = no_speed(exercise, device.TIER)
    if device.TIER != "gpu":
        return blank
    speed, blank = exercise.speed, replace(blank, note="", pending=False)
    verdict = examine(exercise, function, seed, live=True)
    if not verdict.accepted:
        wrong = next((one for one in verdict.cases if not one.right), None)
        why = f" \u201c{wrong.name}\u201d ({wrong.sizes}): {wrong.why}" if wrong else ""
        return replace(blank, note=f"not timed, because not all cases are right yet. {verdict.headline}{why}")
    with quiet():
        rows = tuple(_timed(exercise, case, function, seed) for case in speed.cases)
    share = min(row.share for row in rows)
    return replace(blank, rows=rows, points=speed_credit(share, speed.full, speed.none, speed.points))


def _timed(exercise: Exercise, case, function: Callable, seed: int) -> Timed:
    from course_lib.timing import time_gpu

    call = exercise.draw(case, seed, device.DEVICE, device.TIER)
    args = list(call.args.values())
    took = time_gpu(lambda: function(*args))
    reference = exercise.speed.kernel()
    reference_s = time_gpu(lambda: reference(*args)).median_s if reference else None
    floor_s = exercise.speed.floor_s(call.args, device.ceilings())
    return Timed(exercise.timed_sizes(call), took.median_s, took.low_s, took.high_s, floor_s, reference_s)
