"""Known mistakes under many seeds by their formulas: no kernel, no compiler and no rank runs, so a seed takes seconds.

Whether a case shows a mistake depends on what was drawn and on the mistake, and not on who computes it. So the formula
of a mistake is judged in place of a submission: against the same truth, within the same limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from autograder.exercise import Exercise, Mistake, Values
from autograder.inside.calling import quiet
from autograder.judging.judge import Known, drawn, wrong
from autograder.judging.outcome import Outcome
from course_lib import device

Answer = Callable[[Values], Values]


@dataclass(frozen=True)
class Seed:
    """All calls of an exercise under one seed, each with its truth and its limits."""

    exercise: Exercise
    known: dict[str, Known]  # case -> what is known of its call

    def right(self, answer: Answer) -> dict[str, bool]:
        """In which cases that answer is accepted."""
        with quiet():
            return {case: not self._wrong(known, answer) for case, known in self.known.items()}

    def _wrong(self, known: Known, answer: Answer) -> str:
        try:
            said = answer(known.args)
        except Exception as error:  # a wrong answer may not be able to answer at all
            return f"raised {type(error).__name__}"
        if not said:  # the mistake does not apply to these arguments
            return ""
        outputs = {name: self._typed(known, name, said.get(name, truth)) for name, truth in known.want.items()}
        return wrong(self.exercise, known.args, known.want, Outcome(outputs=outputs), known.limits)[0]

    def _typed(self, known: Known, name: str, value):
        """An output in the type in which a submission writes or returns it."""
        if not isinstance(value, torch.Tensor) or not self.exercise.precision:
            return value
        like = known.args[name] if name in self.exercise.writes else self.exercise.precision.good(known.args)[name]
        return value.to(like.dtype)


def under(exercise: Exercise, seed: int, tier: str = "") -> Seed:
    """The calls of this tier or, drawn on the host all the same, of another; none that takes tens of GB."""
    tier = tier or device.TIER
    cases = [case for case in exercise.cases if tier in case.tiers and not case.part and not case.share]
    with quiet():
        return Seed(exercise, drawn(exercise, tier, seed, cases))


def answers(mistakes: tuple[Mistake, ...]) -> Iterator[tuple[str, Answer]]:
    """Every formula, a mistake's variants each by itself, with a name for it."""
    for mistake in mistakes:
        if mistake.answer and not mistake.variants:
            yield mistake.name, mistake.answer
        for variant in mistake.variants if mistake.answer else ():
            yield f"{mistake.name} of {_short(variant)}", partial(_of_variant, mistake.answer, variant)


def _of_variant(answer: Callable[..., Values], variant, v: Values) -> Values:
    return answer(v, variant)


def _short(variant) -> str:
    return getattr(variant, "__name__", "") or f"{variant}"[:40]
