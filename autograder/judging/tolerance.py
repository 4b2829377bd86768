"""Where the limit lies: derived from two measured errors, never chosen.

An honest computation in the asked precision makes some error; the same computation one precision lower makes a
larger one. Both are measured against float64 on the very inputs of this run. The limit is their geometric mean:
as far, in factors, from refusing the one as from letting the other pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from autograder.exercise import Exercise, Values
from course_lib.numerics import Error, error, ulp

METRICS = ("rms", "worst_row", "worst")

# The relative error of an output of n elements is ||e|| / ||want||, a ratio of two norms that are both random. For one
# element it has no mean: a sum that happens to cancel is as wrong as its terms, and one that happens to be rounded well
# is exact. Over 64 elements either norm is within 30 % of its usual size 999 times in 1000. So an output with fewer
# elements is measured together with siblings of its call, as many as make 64, and against the size usual among them.
ENOUGH = 64


@dataclass(frozen=True)
class Limit:
    """One metric of one output: what passes, and the two measurements that say so."""

    good: float  # largest error of the honest computation over all cases
    lower: float  # typical error of the lower precision over the cases with enough elements

    @property
    def limit(self) -> float:
        return (self.good * self.lower) ** 0.5 if self.good else 0.0  # and not NaN, should `lower` be infinite


Limits = dict[tuple[str, torch.dtype], dict[str, Limit]]  # (output, its dtype) -> metric -> limit
Known = tuple[Values, Values]  # the arguments of a call, and the float64 truth


def derive(exercise: Exercise, situations: Iterable[Known]) -> Limits:
    """Limits for every output and dtype seen in `situations`."""
    return derive_from_groups(exercise, ([known] for known in situations))


def derive_from_groups(exercise: Exercise, groups: Iterable[Sequence[Known]]) -> Limits:
    """The same from groups: a call, then those siblings of it that its small outputs are measured with."""
    measured: dict[tuple[str, torch.dtype], list[tuple[Error, Error]]] = {}
    for group in groups:
        if not group[0][1]:
            continue
        made = [(exercise.precision.good(args), exercise.precision.lower(args), want) for args, want in group]
        for name, truth in group[0][1].items():
            dtype = group[0][0][name].dtype if name in exercise.writes else made[0][0][name].dtype
            some = made[: 1 + _lacking(truth)]
            good, lower, want = (_stacked([one[part][name] for one in some]) for part in range(3))
            pair = (error(good.to(dtype), want), error(lower.to(dtype), want))
            measured.setdefault((name, dtype), []).append(pair)
    floors = {dtype: exercise.precision.floor_ulps * ulp(1.0, dtype) for _, dtype in measured}
    metrics = [m for m in METRICS if m != "worst_row" or exercise.precision.by_row]
    return {key: {m: _limit(pairs, m, floors[key[1]]) for m in metrics} for key, pairs in measured.items()}


def siblings_needed(want: Values) -> int:
    """How many siblings of a call its smallest output is measured with."""
    tensors = [truth for truth in want.values() if isinstance(truth, torch.Tensor) and truth.is_floating_point()]
    return max(map(_lacking, tensors), default=0)


def _lacking(truth: torch.Tensor) -> int:
    """Siblings that make `truth` an output of at least ENOUGH elements; integers have to be exact, however few."""
    if not truth.numel() or not truth.is_floating_point():
        return 0
    return -(-ENOUGH // truth.numel()) - 1


def of_call(limits: Limits, group: Sequence[Known]) -> Limits:
    """The limits for the first call of a group: wider for a small output that is smaller than usual in its group."""
    widened = {}
    for name, truth in group[0][1].items():
        others = [want[name] for _, want in group[: 1 + _lacking(truth)]] if isinstance(truth, torch.Tensor) else []
        if len(others) > 1:
            factor = _shrunk(truth, _stacked(others))
            widened |= {key: _scaled(by, factor) for key, by in limits.items() if key[0] == name}
    return limits | widened


def _stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Tensors of one shape in one; a single one, which may be large, stays where it is."""
    return torch.stack([one.cpu() for one in tensors]) if len(tensors) > 1 else tensors[0]


def _shrunk(truth: torch.Tensor, usual: torch.Tensor) -> float:
    """How many times smaller than usual `truth` is, or 1; one of zeros stays to be exact."""
    size, typical = (float(one[one.isfinite()].square().mean().nan_to_num().sqrt()) for one in (truth, usual))
    return max(1.0, typical / size) if size else 1.0


def at_lower(limits: Limits) -> Limits:
    """Limits that let the lower precision pass, for looking at other things than precision; what is exact stays so."""

    def of_one(limit: Limit) -> Limit:
        return Limit(limit.lower, limit.lower) if limit.good else limit

    return {key: {metric: of_one(one) for metric, one in by.items()} for key, by in limits.items()}


def _scaled(limits: dict[str, Limit], factor: float) -> dict[str, Limit]:
    return {metric: Limit(one.good * factor, one.lower * factor) for metric, one in limits.items()}


def _limit(pairs: list[tuple[Error, Error]], metric: str, floor: float) -> Limit:
    good = max([floor, *(getattr(g, metric) for g, _ in pairs)])
    lower = sorted(getattr(low, metric) for _, low in pairs if low.elements >= ENOUGH)
    return Limit(good, max(lower[len(lower) // 2] if lower else 0.0, 4 * good))


def exceeded(found: Error, limits: dict[str, Limit]) -> list[str]:
    """The metrics in which an error is over its limit; NaN never passes."""
    return [metric for metric, limit in limits.items() if not getattr(found, metric) <= limit.limit]


def in_words(exercise: Exercise, limits: Limits) -> list[str]:
    """One line an output: the limit and where it comes from."""
    lines = []
    for (name, dtype), by_metric in limits.items():
        rms = by_metric["rms"]
        short = str(dtype).removeprefix("torch.")
        if not rms.limit:
            lines.append(f"{name} ({short}): every element exact")
            continue
        lines.append(
            f"{name} ({short}): relative error at most {rms.limit:.1e}, between {rms.good:.1e} "
            f"({exercise.precision.good_is}) and {rms.lower:.1e} ({exercise.precision.lower_is})"
        )
    return lines
