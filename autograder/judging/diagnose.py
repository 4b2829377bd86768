"""Which mistake is it: known wrong answers first, then the pattern of what is wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from autograder.exercise import Mistake, Values
from autograder.judging.compare import same
from autograder.judging.evidence import Evidence, TriedCase
from autograder.judging.verdict import Diagnosis

AGAINST = 2  # cases that a formula explains for each right case in which it predicts an error, at least
ABOUT_VALUES = {"unwritten", "nan", "constant factor"}  # patterns that say more than where


def diagnose(evidence: Evidence) -> Diagnosis | None:
    """None when every case is right."""
    failing = evidence.failing
    if not failing:
        return None
    if all(t.outcome.not_written for t in failing):
        return Diagnosis(None, "Not written yet: replace the line that says so with your own code.")
    pattern = _pattern(evidence)
    mistakes = evidence.exercise.mistakes
    mistake = _known(evidence, mistakes) or _known(evidence, _products(mistakes))
    if mistake:
        return Diagnosis(mistake.name, mistake.says, pattern)
    raised = next((t for t in failing if t.outcome.error), None)
    part, count = _partly(evidence)
    if part and count > sum(bool(t.outcome.error) for t in failing):
        return Diagnosis(part.name, f"In {count} of the {len(failing)} wrong cases: {part.says}", pattern)
    if raised:
        where = f" ({raised.outcome.where})" if raised.outcome.where else ""
        ended = raised.outcome.lost or raised.outcome.found
        said = f": {raised.why}" if ended else f" the call raised {raised.outcome.error}{where}"
        says = f"In the case \u201c{raised.case.name}\u201d{said}"
        if raised.outcome.fault:
            says += ". A kernel reached far outside its arrays: look at its masks and its strides."
        return Diagnosis(None, says, pattern)
    return Diagnosis(None, f"In the case \u201c{failing[0].case.name}\u201d: {failing[0].why}", pattern)


def _known(evidence: Evidence, mistakes: Iterable[Mistake]) -> Mistake | None:
    """The mistake that explains most failing cases, the earlier of two that explain as many."""
    best, most = None, 0
    for mistake in mistakes:
        try:
            explained = _explained(mistake, evidence, most)
            borne = explained > most and AGAINST * _against(mistake, evidence) <= explained
        except Exception:  # it looked into an answer that was forged to have another form: no mistake that people make
            continue
        if borne:
            best, most = mistake, explained
    return best


def _products(mistakes: Sequence[Mistake]) -> Iterator[Mistake]:
    """Each mistake that rounds the inputs together with each that then does something else to them."""
    for one, other in itertools.product((m for m in mistakes if m.rounds), (m for m in mistakes if m.answer)):
        ways = [(rounded, *variant) for rounded in one.rounds for variant in [(v,) for v in other.variants] or [()]]
        yield Mistake(
            f"{one.name} and {other.name}",
            f"Two things at once. {one.says} And: {other.says}",
            answer=lambda v, way, f=other.answer: f(_rounded(v, way[0]), *way[1:]),
            variants=tuple(ways),
        )


def _rounded(values: Values, rounded: Callable[[torch.Tensor], torch.Tensor]) -> Values:
    inputs = {n: v for n, v in values.items() if isinstance(v, torch.Tensor) and v.is_floating_point()}
    return values | {name: rounded(value).to(value.dtype) for name, value in inputs.items()}


def _against(mistake: Mistake, evidence: Evidence) -> int:
    """In how many right cases the formula of a mistake predicts an answer that would have been wrong."""
    if mistake.answer is None:
        return 0
    variants = [(v,) for v in mistake.variants] or [()]
    right = [t for t in evidence.tried if t.right]
    return sum(all(_would_be_wrong(mistake.answer(t.args, *v), t, evidence) for v in variants) for t in right)


def _would_be_wrong(answer, t: TriedCase, evidence: Evidence) -> bool:
    """Whether that answer would not have been accepted in this case, where a right one came."""
    if not answer:
        return False
    if any(isinstance(value, torch.Tensor) for value in answer.values()):
        return evidence.differs(t, answer)
    return not _agrees(answer, t, evidence)


def _explained(mistake: Mistake, evidence: Evidence, most: int) -> int:
    """How many failing cases the mistake explains; 0 when that is not over half of them, or not over `most`."""
    if mistake.sign is not None:
        return len(evidence.failing) if mistake.sign(evidence) else 0
    told = [t for t in evidence.failing if not t.outcome.silent]
    ran = [t for t in told if t.outcome.error is None]
    needed = max(most, len(told) // 2) + 1
    count = 0
    for left, t in zip(range(len(ran), 0, -1), ran, strict=True):
        if count + left < needed:
            return 0
        count += _is_answer(mistake, t, evidence)
    return count if count >= needed else 0


def _partly(evidence: Evidence) -> tuple[Mistake | None, int]:
    """The mistake that explains most failing cases, even if fewer than half.

    Below half is enough for exact outputs only: a match there cannot be chance.
    """
    exact = evidence.limits and not any(m.limit for by in evidence.limits.values() for m in by.values())
    ran = [t for t in evidence.failing if t.outcome.error is None]
    formulas = [m for m in evidence.exercise.mistakes if m.answer is not None] if exact else []
    counts = [sum(_is_answer(mistake, t, evidence) for t in ran) for mistake in formulas]
    best = max(counts, default=0)
    return (formulas[counts.index(best)], best) if best else (None, 0)


def _is_answer(mistake: Mistake, t: TriedCase, evidence: Evidence) -> bool:
    variants = [(v,) for v in mistake.variants] or [()]
    return any(_agrees(mistake.answer(t.args, *variant), t, evidence) for variant in variants)


def _agrees(answer, t: TriedCase, evidence: Evidence) -> bool:
    if not answer:  # the mistake does not apply to these arguments
        return False
    if any(isinstance(value, torch.Tensor) for value in answer.values()):
        return evidence.matches(t, answer)
    accept = evidence.exercise.accept or same
    return all(accept(t.outcome.outputs.get(name), value, t.args) is None for name, value in answer.items())


def _pattern(evidence: Evidence) -> str:
    """The pattern of the largest wrong case: it says most. None where every case was refused for what it wrote over."""
    if all(t.outcome.error or t.outcome.changed for t in evidence.failing):
        return ""
    for output in evidence.exercise.outputs:
        case, kinds = next((found for found in evidence.patterns(output) if found[1]), ("", {}))
        if kinds:
            places = evidence.places(output)
            kind = next(iter(kinds.values())) if not places or kinds.keys() & ABOUT_VALUES else ""
            return f"{output}, in \u201c{case}\u201d: {'; '.join(filter(None, [kind, places]))}."
    return ""
