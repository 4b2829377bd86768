"""Outputs in, verdict out. Pure: no process, no notebook, no clock."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from autograder.exercise import Call, Case, Exercise, Values
from autograder.judging import tolerance
from autograder.judging.compare import same
from autograder.judging.diagnose import diagnose
from autograder.judging.evidence import Evidence, TriedCase, over_limit, size_of
from autograder.judging.outcome import FOUND, LOST, NOT_TRIED, NOT_WRITTEN, Outcome
from autograder.judging.score import credit
from autograder.judging.verdict import SAID, CaseVerdict, Picture, SpeedVerdict, Verdict, brief, told_apart
from course_lib.numerics import error

NO_SPEED = "waits for a GPU; without one no speed can be measured."
NOT_ALONE = "waits for a GPU of its own: where this was judged, others may have used the GPU at the same time."
Trial = tuple[Case, Call, Outcome]
Siblings = Callable[[Case, int], list[Values]]
SHORT = 300  # characters of an expected value that is shown to the instructor
GIVEN = 1_200  # and of the arguments of a scenario; the longest of dispatch.table has about as many


@dataclass(frozen=True)
class Known:
    """A call before anybody answered it."""

    args: Values  # arguments and secret
    want: Values
    limits: tolerance.Limits


def not_tried(case: Case, why: str = NOT_WRITTEN) -> Trial:
    """What stands for a case that nobody tried: it is wrong, and counts as every other one."""
    return case, Call({}, "not tried"), Outcome(error=f"{NOT_TRIED}: {why}")


def is_stub(trials: Sequence[Trial]) -> bool:
    """Whether the first case says that nothing is written yet: then the others need not be tried."""
    return bool(trials) and trials[0][2].not_written


def drawn(exercise: Exercise, tier: str, seed: int, cases: Sequence[Case]) -> dict[str, Known]:
    """What is true of the calls of these cases on the host, and within which limits: as `judge` judges them."""
    trials = [(case, exercise.draw(case, seed, "cpu", tier), Outcome()) for case in cases]
    known, wants, groups, limits = _truth(exercise, trials, _siblings(exercise, tier, seed))
    told = (tolerance.of_call(limits, group) if len(group) > 1 else limits for group in groups)
    return {
        case.name: Known(args, want, of_call)
        for case, args, want, of_call in zip(cases, known, wants, told, strict=True)
    }


def judge(exercise: Exercise, tier: str, seed: int, trials: Sequence[Trial]) -> Verdict:
    """The verdict over all calls of one submission; the truth is computed here, after every call has ended."""
    cases, evidence = _compared(exercise, trials, _siblings(exercise, tier, seed))
    note = _note(exercise, evidence)
    return Verdict(
        exercise=exercise.name,
        tier=tier,
        seed=seed,
        points=0.0 if note else credit(exercise, *told_apart(cases)),
        out_of=exercise.points,
        cases=cases,
        diagnosis=diagnose(evidence),
        limits=tuple(tolerance.in_words(exercise, evidence.limits)),
        shows_not=exercise.shows_not if tier == "interpreter" else "",
        note=note,
    )


def case_verdict(exercise: Exercise, tier: str, seed: int, trial: Trial) -> CaseVerdict:
    """One call by itself, undiagnosed. The lower precision passes: how precise an answer is, all cases say together."""
    return _compared(exercise, [trial], _siblings(exercise, tier, seed), tolerance.at_lower)[0][0]


def _compared(
    exercise: Exercise, trials: Sequence[Trial], siblings: Siblings, within: Callable = lambda limits: limits
) -> tuple[tuple[CaseVerdict, ...], Evidence]:
    known, wants, groups, limits = _truth(exercise, trials, siblings)
    limits = within(limits)
    tried, cases = [], []
    for (case, call, outcome), args, want, group in zip(trials, known, wants, groups, strict=True):
        outcome = _beside(outcome, want)
        of_call = tolerance.of_call(limits, group) if len(group) > 1 else limits
        why, errors, fine = by_output(exercise, args, want, outcome, of_call)
        why = brief(why, SAID)
        picture = _picture(want, outcome, of_call) if why else None
        expected = _expected(exercise, call.args, want, outcome, fine) if why else ""
        cases.append(CaseVerdict(case.name, call.sizes, not why, why, errors, picture, fine, expected))
        tried.append(TriedCase(case, call.sizes, args, want, outcome, not why, why))
    return tuple(cases), Evidence(exercise, tuple(tried), limits)


def _truth(exercise: Exercise, trials: Sequence[Trial], siblings: Siblings):
    """Of every call its arguments, its truth, and the group that its limits come from; and the limits of all."""
    known = [{**call.args, **call.secret} for _, call, _ in trials]
    wants = [{} if trial[2].error else exercise.oracle(args) for trial, args in zip(trials, known, strict=True)]
    groups = list(_groups(exercise, trials, known, wants, siblings)) if exercise.precision else [()] * len(trials)
    limits = tolerance.derive_from_groups(exercise, groups) if exercise.precision else {}
    return known, wants, groups, limits


def _siblings(exercise: Exercise, tier: str, seed: int) -> Siblings:
    """Further calls of a case, of the same sizes with other values, as `known` to the oracle."""

    def drawn(case: Case, count: int) -> list[Values]:
        calls = (exercise.draw(case, seed, "cpu", tier, values=seed + n) for n in range(count))
        return [{**call.args, **call.secret} for call in calls]

    return drawn


def _groups(
    exercise: Exercise, trials: Sequence[Trial], known, wants, siblings: Siblings
) -> Iterator[list[tuple[Values, Values]]]:
    """Every call with the siblings that its small outputs are measured with."""
    for (case, _, _), (args, want) in zip(trials, _situations(exercise, trials, known, wants), strict=True):
        count = tolerance.siblings_needed(want) if not case.part else 0
        yield [(args, want), *((other, exercise.oracle(other)) for other in (siblings(case, count) if count else ()))]


def _situations(exercise: Exercise, trials: Sequence[Trial], known, wants) -> Iterator[tuple[Values, Values]]:
    """What limits come from: the inputs of all calls, so that a call which raised moves the limit of no other.

    Left out are a stub, which nobody asks about limits, and what may lie on a device that no longer answers.
    """
    stub = is_stub(trials)
    for (_, call, outcome), args, want in zip(trials, known, wants, strict=True):
        readable = call.args and not any(isinstance(value, torch.Tensor) and value.is_cuda for value in args.values())
        yield args, exercise.oracle(args) if outcome.error and readable and not stub else want


def _beside(outcome: Outcome, want: Values) -> Outcome:
    """With the outputs on the device of their truth: a small output of a large call came to the host alone."""
    tensors = {name: value for name, value in outcome.outputs.items() if isinstance(value, torch.Tensor)}
    there = {name: want[name].device for name in tensors if isinstance(want.get(name), torch.Tensor)}
    moved = {name: tensors[name].to(device) for name, device in there.items()}
    return replace(outcome, outputs={**outcome.outputs, **moved})


def _note(exercise: Exercise, evidence: Evidence) -> str:
    """A reason why right outputs earn nothing."""
    # a call that raised may have launched, and one without elements has nothing to launch for
    ran = [t for t in evidence.tried if t.outcome.error is None and any(size_of(w) for w in t.want.values())]
    if exercise.asks_for_kernels and ran and not any(t.outcome.launches for t in ran):
        return "No Triton kernel was launched: this exercise asks for one."
    return ""


def wrong(exercise: Exercise, args: Values, want: Values, outcome: Outcome, limits) -> tuple[str, dict]:
    """(what is wrong, output by output, or "", and the errors of every output)."""
    return by_output(exercise, args, want, outcome, limits)[:2]


def by_output(exercise: Exercise, args: Values, want: Values, outcome: Outcome, limits):
    """The same, and the outputs that are right where others are wrong."""
    if outcome.error and outcome.error.startswith(NOT_TRIED):
        return f"not tried{outcome.error.removeprefix(NOT_TRIED)}", {}, ()
    if outcome.lost:
        return outcome.error.removeprefix(f"{LOST}: "), {}, ()
    if outcome.found:
        return outcome.error.removeprefix(f"{FOUND}: "), {}, ()
    if outcome.error:
        return f"raised {outcome.error}" + (f" at {outcome.where}" if outcome.where else ""), {}, ()
    for name, damage in outcome.damage.items():
        return f"wrote {damage.total} elements outside `{name}`", {}, ()
    for name, count in outcome.changed.items():
        return f"changed {count} elements of the input `{name}`", {}, ()
    errors, whys, fine = {}, [], []
    for name, truth in want.items():
        got = outcome.outputs.get(name)
        if isinstance(truth, torch.Tensor):
            why, errors[name] = _tensor_wrong(exercise, name, got, truth, limits, outcome, args)
        else:
            why = _plain_wrong(exercise, got, truth, args)
        whys += [why] if why else []
        fine += [] if why else [name]
    rest = [f"{' and '.join(f'`{name}`' for name in fine)} {'is' if len(fine) == 1 else 'are'} right"] if fine else []
    said = "; ".join([*dict.fromkeys(whys), *rest])
    told = {name: e for name, e in errors.items() if e is not None}
    return (said, told, tuple(fine)) if whys else ("", told, ())


def _plain_wrong(exercise: Exercise, got, truth, args: Values) -> str | None:
    try:
        return (exercise.accept or same)(got, truth, args)
    except Exception:  # numbers where lists belong, and the like: code that forges its answer may send anything
        return "the answer is not of the form that was asked for"


def _tensor_wrong(exercise, name, got, truth, limits, outcome, args):
    if not isinstance(got, torch.Tensor):
        return f"`{name}` should be a tensor, got {type(got).__name__}", None
    if got.shape != truth.shape:
        return f"`{name}` has shape {tuple(got.shape)}, should be {tuple(truth.shape)}", None
    by_metric, types = limits.get((name, got.dtype)), [d for n, d in limits if n == name]
    if name in exercise.returns and len(types) > 1:  # of those that other calls return, this one has its own
        types = [exercise.precision.good(args)[name].dtype]
    if by_metric is None or got.dtype not in types:
        allowed = ", ".join(str(d).removeprefix("torch.") for d in types)
        return f"`{name}` is {str(got.dtype).removeprefix('torch.')}, should be {allowed}", None
    found = error(got, truth)
    if outcome.unwritten.get(name) and (got.is_floating_point() or found.worst):
        return f"{outcome.unwritten[name]} of {truth.numel()} elements of `{name}` were never written", found
    over = tolerance.exceeded(found, by_metric)
    if over:
        metric = over[0]
        value, limit = getattr(found, metric), by_metric[metric].limit
        if not limit:
            different = int((over_limit(got, truth, limits) != 0).sum())
            return f"`{name}`: {different} of {truth.numel()} elements are wrong, and every one should be exact", found
        words = {"rms": "relative error", "worst_row": "relative error of the worst row", "worst": "worst element"}
        return f"`{name}`: {words[metric]} {value:.1e}, limit {limit:.1e}", found
    return "", found


def _picture(want: Values, outcome: Outcome, limits) -> Picture | None:
    for name, truth in want.items():
        got = outcome.outputs.get(name)
        if isinstance(truth, torch.Tensor) and isinstance(got, torch.Tensor) and got.shape == truth.shape:
            if truth.numel() >= 2:
                return Picture(name, over_limit(got, truth, limits).cpu())
    return None


def _expected(exercise: Exercise, args: Values, want: Values, outcome: Outcome, fine: Sequence[str]) -> str:
    """The wrong outputs that are plain data, beside what is true, and on a line of its own what was given."""
    said = []
    for name, truth in want.items():
        got = outcome.outputs.get(name)
        if name in fine or name not in outcome.outputs or isinstance(truth, torch.Tensor):
            continue
        with contextlib.suppress(Exception):  # in a process of their own, an answer may be anything
            if got != truth:
                at, got, truth = _apart(got, truth)
                if len(expected := repr(truth)) <= SHORT:
                    said.append(f"`{name}{at}`: answered {brief(repr(got), SHORT)}, expected {expected}")
    given = repr(args) if exercise.kind == "scenario" else ""
    return "\n".join(filter(None, ["; ".join(said), f"given {given}" if 0 < len(given) <= GIVEN else ""]))


def _apart(got, want, at: str = "") -> tuple[str, Any, Any]:
    """Down to the first part that differs, while what was expected is too long to be read: where, and both."""
    places = want if isinstance(want, Mapping) else range(len(want)) if isinstance(want, list | tuple) else ()
    if len(repr(want)) > SHORT:
        for place in places:
            if place not in (got if isinstance(got, Mapping) else range(len(got))):
                return f"{at}[{place!r}]", None, want[place]
            if got[place] != want[place]:
                return _apart(got[place], want[place], f"{at}[{place!r}]")
    return at, got, want


def no_speed(exercise: Exercise, tier: str, why: str = NO_SPEED) -> SpeedVerdict:
    """What is said about speed where it cannot be measured: nothing is decided."""
    speed = exercise.speed
    if speed is None:
        raise ValueError(f"{exercise.name} has no points for speed")
    return SpeedVerdict(
        exercise.name, tier, 0.0, speed.points, full=speed.full, none=speed.none, note=why, pending=True
    )
