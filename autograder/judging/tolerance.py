"""Where the limit lies: derived from two measured errors, never chosen.

An honest computation in the asked precision makes some error; the same computation one precision lower makes a
larger one. Both are measured against float64 on the very inputs of this run. The limit is their geometric mean:
as far, in factors, from refusing the one as from letting the other pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from autograder.exercise import Exercise, Values
from course_lib.numerics import Error, error, ulp

METRICS = ("rms", "worst_row", "worst")
ENOUGH = 64  # elements: a smaller output can be exact by luck in either precision


@dataclass(frozen=True)
class Limit:
    """One metric of one output: what passes, and the two measurements that say so."""

    good: float  # largest error of the honest computation over all cases
    lower: float  # typical error of the lower precision over the cases with enough elements

    @property
    def limit(self) -> float:
        return (self.good * self.lower) ** 0.5 if self.good else 0.0  # and not NaN, should `lower` be infinite


Limits = dict[tuple[str, torch.dtype], dict[str, Limit]]  # (output, its dtype) -> metric -> limit


def derive(exercise: Exercise, situations: Iterable[tuple[Values, Values]]) -> Limits:
    """Limits for every output and dtype seen in `situations`: pairs of arguments and float64 truth."""
    measured: dict[tuple[str, torch.dtype], list[tuple[Error, Error]]] = {}
    for args, want in situations:
        if not want:
            continue
        good, lower = exercise.precision.good(args), exercise.precision.lower(args)
        for name, truth in want.items():
            dtype = args[name].dtype if name in exercise.writes else good[name].dtype
            pair = (error(good[name].to(dtype), truth), error(lower[name].to(dtype), truth))
            measured.setdefault((name, dtype), []).append(pair)
    floors = {dtype: exercise.precision.floor_ulps * ulp(1.0, dtype) for _, dtype in measured}
    return {key: {m: _limit(pairs, m, floors[key[1]]) for m in METRICS} for key, pairs in measured.items()}


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
