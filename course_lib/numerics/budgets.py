"""Error budgets: how much error each rounding of a computation brings, and whether these errors explain the whole.

Roundings are independent, so the squares of their errors add up. A budget lists the error of each step alone, the error
that all steps should give together, and the measured error. Where the last two differ, some error comes from no step.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from course_lib.numerics.formats import ulp
from course_lib.table import Table, Tabular

__all__ = ["Budget", "UlpStatistics", "error_budget", "signed_ulps", "ulp_statistics"]


def signed_ulps(got: torch.Tensor, want: torch.Tensor, dtype=None) -> torch.Tensor:
    """(got - want) in units in the last place at `want`, float64; of got's dtype, or of the format that is named."""
    got, want = _pair(got, want, dtype)
    return (got - want) / ulp(want, dtype or got.dtype)


@dataclass(frozen=True)
class UlpStatistics:
    """Of finite elements, in units in the last place."""

    mean: float  # near 0 when errors have no preferred sign
    rms: float  # 0.29 for one rounding of anything: a half unit either way, all equally likely
    largest: float
    correct: float  # share within half a unit: no number of the format is nearer
    faithful: float  # share below one unit: one of the two neighbours


def ulp_statistics(got: torch.Tensor, want: torch.Tensor, dtype=None) -> UlpStatistics:
    """got of any float dtype against want, float64; in units of got's dtype, or of the format that is named."""
    off = signed_ulps(got, want, dtype or got.dtype).flatten()
    off = off[off.isfinite()]
    if off.numel() == 0:
        return UlpStatistics(0.0, 0.0, 0.0, 1.0, 1.0)
    size = off.abs()
    return UlpStatistics(
        mean=float(off.mean()),
        rms=float(off.square().mean().sqrt()),
        largest=float(size.max()),
        correct=float((size <= 0.5).double().mean()),
        faithful=float((size < 1).double().mean()),
    )


@dataclass(frozen=True)
class Budget(Tabular):
    """Relative errors, ||got - want|| / ||want||."""

    parts: dict[str, float]  # what each step alone brings
    measured: float  # what all steps bring

    @property
    def expected(self) -> float:
        return sum(part * part for part in self.parts.values()) ** 0.5

    def rows(self) -> list[tuple[str, str, str]]:
        """(what, error, share of the expected square)."""
        whole = self.expected**2 or 1.0
        parts = [(name, f"{part:.2e}", f"{part * part / whole:.0%}") for name, part in self.parts.items()]
        return [*parts, ("expected of all", f"{self.expected:.2e}", ""), ("measured", f"{self.measured:.2e}", "")]

    def table(self) -> Table:
        return Table(("rounding", "relative error", "share"), self.rows())


def error_budget(want: torch.Tensor, parts: Mapping[str, torch.Tensor], got: torch.Tensor) -> Budget:
    """want: exact, float64. parts: name -> the result where only that step rounds. got: where all of them do."""
    return Budget({name: _relative(part, want) for name, part in parts.items()}, _relative(got, want))


def _relative(got: torch.Tensor, want: torch.Tensor) -> float:
    got, want = _pair(got, want, None)
    size = want.norm()
    off = (got - want).norm()
    return float(off / size) if size > 0 else float("inf") if off > 0 else 0.0


def _pair(got: torch.Tensor, want: torch.Tensor, dtype) -> tuple[torch.Tensor, torch.Tensor]:
    if got.shape != want.shape:
        raise ValueError(f"shapes differ: got {tuple(got.shape)}, want {tuple(want.shape)}")
    return got.detach().to(want.device).to(torch.float64), want.detach().to(torch.float64)
