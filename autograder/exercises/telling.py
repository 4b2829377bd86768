"""Every draw of a case tells the same known mistakes from the truth, so that an answer earns the same points each time.

A case is for some mistakes: there their answers differ from the truth. Many a draw shows others too, or hides one by
luck. So a call is drawn anew until exactly the mistakes show that show in a typical draw of this case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from autograder.exercise import Call, Case, Draw, Mistake, Values
from autograder.judging.compare import same

LOOKED_AT = 7  # draws among which the typical one is found; of fixed seeds, so that it is the same everywhere
MOST = 4000  # draws of one call; the last resort is the draw that is nearest to the typical one

Shown = tuple[bool, ...]  # for each wrong answer whether it differs from the truth


@dataclass(eq=False)
class Telling:
    """Draws calls of one case."""

    draw: Callable[[Draw], Call]
    oracle: Callable[[Values], Values]
    answers: Sequence[Callable[[Values], Values]]
    accept: Callable[[Any, Any, Values], str | None]
    typical: dict[str, tuple[Shown, list[int]]] = field(default_factory=dict)  # tier -> see _typical

    def __call__(self, d: Draw) -> Call:
        if d.tier not in self.typical:
            self.typical[d.tier] = self._typical(d.tier)
        asked, order = self.typical[d.tier]
        nearest, call = -1, None
        for _ in range(MOST):
            drawn = self.draw(d)
            agreeing = self._agreeing(drawn, asked, order)
            if agreeing > nearest:
                nearest, call = agreeing, drawn
            if agreeing == len(order):
                break
        return call

    def _typical(self, tier: str) -> tuple[Shown, list[int]]:
        """What shows in the draw that most others are like, and the order in which to look: what varies comes first."""
        drawn = [self.draw(Draw(seed, "cpu", tier)) for seed in range(LOOKED_AT)]
        shown = [tuple(self._shown(call, range(len(self.answers)))) for call in drawn]
        often = [sum(column) for column in zip(*shown, strict=True)]
        order = sorted(range(len(often)), key=lambda n: abs(2 * often[n] - LOOKED_AT))
        alike = Counter(shown)
        near = {one: sum(n * sum(map(bool.__eq__, one, other)) for other, n in alike.items()) for one in alike}
        return max(near, key=lambda one: (near[one], sum(one), one)), order

    def _agreeing(self, call: Call, asked: Shown, order: Sequence[int]) -> int:
        """How many wrong answers, from the first on, show as asked."""
        shown = enumerate(zip(order, self._shown(call, order), strict=True))
        return next((place for place, (n, shows) in shown if shows != asked[n]), len(order))

    def _shown(self, call: Call, numbers: Iterable[int]) -> Iterator[bool]:
        """Whether each of these wrong answers differs from the truth."""
        args = {**call.args, **call.secret}
        want = self.oracle(args)
        for number in numbers:
            try:
                got = self.answers[number](args)
                yield any(self.accept(got[name], truth, args) for name, truth in want.items() if name in got)
            except Exception:  # a wrong answer may not be able to answer at all
                yield True


def telling(
    cases: Iterable[Case],
    oracle: Callable[[Values], Values],
    mistakes: Iterable[Mistake],
    accept: Callable[[Any, Any, Values], str | None] | None = None,
    also: Sequence[Callable[[Values], Values]] = (),
    among: Mapping[str, str] | None = None,
) -> tuple[Case, ...]:
    """The cases, each drawn until it tells what it is for.

    also: wrong answers to look at in every case beside the mistakes. among: where all mistakes would take long, the
    names of those to look at, by case; a case that is not there looks at `also` alone, and is drawn once without it.
    """

    def answers(case: Case) -> list[Callable[[Values], Values]]:
        names = None if among is None else among.get(case.name, "").split()
        chosen = [m for m in mistakes if m.answer and (names is None or m.name in names)]
        some = [
            partial(_of_variant, m.answer, v) if m.variants else m.answer for m in chosen for v in m.variants or (0,)
        ]
        return [*some, *also]

    return tuple(
        replace(case, draw=Telling(case.draw, oracle, found, accept or same)) if (found := answers(case)) else case
        for case in cases
    )


def _of_variant(answer: Callable[..., Values], variant, v: Values) -> Values:
    return answer(v, variant)
