"""Everything known about a submission's calls, in the form in which mistakes ask about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from autograder.exercise import Case, Exercise, Values
from autograder.judging import patterns, tolerance
from autograder.judging.outcome import Outcome
from course_lib.numerics import error


@dataclass(frozen=True)
class TriedCase:
    """One case: what was passed, what is true, what came."""

    case: Case
    sizes: str
    args: Values  # arguments and secret, as drawn
    want: Values
    outcome: Outcome
    right: bool
    why: str


@dataclass(frozen=True)
class Evidence:
    exercise: Exercise
    tried: tuple[TriedCase, ...]
    limits: tolerance.Limits

    @property
    def failing(self) -> list[TriedCase]:
        """Wrong cases up to and including the first crash or timeout."""
        wrong = [t for t in self.tried if not t.right]
        last = next((i for i, t in enumerate(wrong) if t.outcome.silent), len(wrong))
        return wrong[: last + 1]

    # ---- what a Mistake.sign may ask

    def failed(self, case: str) -> bool:
        return any(t.case.name == case for t in self.failing)

    def passed(self, case: str) -> bool:
        return any(t.case.name == case and t.right for t in self.tried)

    def failed_only(self, *cases: str) -> bool:
        return bool(self.failing) and all(t.case.name in cases for t in self.failing)

    def raised(self, text: str) -> bool:
        return any(text in (t.outcome.error or "") for t in self.failing)

    def raised_any(self) -> bool:
        return any(t.outcome.error for t in self.failing)

    def changed(self, arg: str) -> bool:
        return any(arg in t.outcome.changed for t in self.tried)

    def wrote_outside(self, arg: str, where: str | None = None, nan: bool | None = None, count: int | None = None):
        """Some case wrote beyond `arg`: `where` is "before", "after" or "gaps"; `nan` whether all of it was NaN."""
        found = [d for t in self.tried if (d := t.outcome.damage.get(arg))]
        if where:
            found = [d for d in found if getattr(d, where)]
        if nan is not None:
            found = [d for d in found if d.nan == nan]
        if count is not None and not all((getattr(d, where) if where else d.total) == count for d in found):
            return False
        return bool(found)

    def all_failing_unwritten(self, output: str) -> bool:
        """In every failing case that ran, not one element of `output` was written."""
        ran = [t for t in self.failing if output in t.outcome.outputs and t.want[output].numel()]
        return bool(ran) and all(t.outcome.unwritten.get(output) == t.want[output].numel() for t in ran)

    def has_pattern(self, kind: str, output: str) -> bool:
        """Every failing case with that output shows the pattern (see judging.patterns)."""
        seen = [kinds for _, kinds in self.patterns(output)]
        return bool(seen) and all(kind in kinds for kinds in seen)

    # ---- what diagnosis asks

    def patterns(self, output: str) -> Iterator[tuple[str, dict[str, str]]]:
        """Every wrong case that wrote `output`, and its patterns, the most telling case first."""
        for t in self._telling(output):
            got, want = t.outcome.outputs.get(output), t.want.get(output)
            if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor) and got.shape == want.shape:
                yield t.case.name, patterns.describe(got, want, self.wrong(t, output))

    def _telling(self, output: str) -> list[TriedCase]:
        """Wrong cases, the largest first, but those of two-byte types last: where fp32 is wrong too, a type is not to
        blame.
        """

        def key(t: TriedCase) -> tuple[bool, int]:
            got = t.outcome.outputs.get(output)
            return isinstance(got, torch.Tensor) and got.dtype.itemsize == 2, -size_of(t.want.get(output))

        return sorted(self.failing, key=key)

    def places(self, output: str) -> str:
        """Where the most telling wrong case is wrong, in the words of an exercise that has some."""
        if self.exercise.where is None:
            return ""
        for t in self._telling(output):
            got, want = t.outcome.outputs.get(output), t.want.get(output)
            if isinstance(got, torch.Tensor) and got.shape == want.shape:
                wrong = self.wrong(t, output) | (got.isnan() & ~want.isnan())
                if wrong.any():
                    return self.exercise.where(output, wrong, t.args)
        return ""

    def wrong(self, t: TriedCase, output: str) -> torch.Tensor:
        """Which elements of an output are over the elementwise limit."""
        return over_limit(t.outcome.outputs[output], t.want[output], self.limits) > 1

    def matches(self, t: TriedCase, answer: Values) -> bool:
        """Whether what came in this case is that wrong answer, within the limits."""
        for name, claimed in answer.items():
            got = t.outcome.outputs.get(name)
            if not isinstance(claimed, torch.Tensor):
                return False
            if not isinstance(got, torch.Tensor) or got.shape != claimed.shape:
                return False
            limits = self.limits.get((name, got.dtype))
            if limits is None or _far_apart(got, claimed):
                return False
            found = error(got, claimed.to(torch.float64))
            if not tolerance.exceeded(found, limits):
                continue
            # a lower-precision answer differs from ours by its own order of rounding: much nearer to it than to the
            # truth is then what "the same" means
            off = error(got, t.want[name]).rms
            if not (off < 100 * limits["rms"].limit and found.rms <= 0.25 * off):
                return False
        return self.differs(t, answer)

    def differs(self, t: TriedCase, answer: Values) -> bool:
        """Whether a wrong answer is wrong here: where it meets the truth, it explains no failure."""
        return any(self._differs(t, name, claimed) for name, claimed in answer.items())

    def _differs(self, t: TriedCase, name: str, claimed: torch.Tensor) -> bool:
        limits = self.limits[(name, t.outcome.outputs[name].dtype)]
        return bool(tolerance.exceeded(error(claimed, t.want[name]), limits))


def _far_apart(got: torch.Tensor, claimed: torch.Tensor) -> bool:
    """A cheap no, for hundreds of known wrong answers: NaN elsewhere, or off by half taken together."""
    got, claimed = got.detach().to(torch.float64), claimed.to(torch.float64)
    if not torch.equal(got.isnan(), claimed.isnan()):
        return True
    off = torch.where((got == claimed) | got.isnan(), 0.0, got - claimed)
    size = torch.where(claimed.isfinite(), claimed, 0.0)
    return not bool(off.square().sum() <= 0.25 * size.square().sum())


def size_of(value) -> int:
    return value.numel() if isinstance(value, torch.Tensor) else 0


def over_limit(got: torch.Tensor, want: torch.Tensor, limits: tolerance.Limits) -> torch.Tensor:
    """|got - want| over the elementwise limit of this output; NaN where got is NaN and want is not."""
    limit = next((by["worst"].limit for (_, dtype), by in limits.items() if dtype == got.dtype), 0.0)
    got64 = got.detach().to(torch.float64)
    size = want.abs().nan_to_num(posinf=0.0)
    # where every element is to be exact, a large one excuses no small one
    scale = size + size.square().mean().sqrt() if limit and want.numel() else size
    same = (got64 == want) | (got64.isnan() & want.isnan())
    ratio = (got64 - want).abs() / ((limit or 1e-12) * scale.clamp(min=1e-280))
    ratio = torch.where(want.isnan() & ~got64.isnan(), torch.inf, ratio)
    return torch.where(same, torch.zeros_like(ratio), ratio).nan_to_num(nan=float("nan"), posinf=1e300)
