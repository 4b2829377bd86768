"""How wrong is an answer: errors against float64, units in the last place, rounding to a format.

Three errors are needed, because each one misses something. `rms` is an average, so one wrong row in ten
thousand hides in it. `worst_row` shows such a row, and `worst` a single wrong element. `ulps` counts steps
of the output's own format: no answer in that format can be finer than one step.

    formats   from fp64 to eight bits: rounding in exact emulation, spacing, bits
    sums      in a chosen format and order
    budgets   which rounding brings which error; statistics in units in the last place
"""

from dataclasses import dataclass
from math import inf

import numpy as np
import torch

from course_lib.numerics.budgets import (
    Budget,
    UlpStatistics,
    error_budget,
    signed_ulps,
    ulp_statistics,
)
from course_lib.numerics.formats import Bits, Format, bits, round_to, ulp
from course_lib.numerics.sums import accumulate, running_sums

__all__ = [
    "Bits",
    "Budget",
    "Error",
    "Format",
    "UlpStatistics",
    "accumulate",
    "bits",
    "error",
    "error_budget",
    "round_to",
    "running_sums",
    "signed_ulps",
    "ulp",
    "ulp_statistics",
    "ulps",
]

# A row smaller than this share of the typical row is compared with that share instead of with its own size:
# its rounding errors come from intermediates of the typical size, and a row of zeros has no size at all.
SMALL_ROW = 0.01
FEW = 1 << 16  # elements that a CPU compares in less time than a GPU needs to be asked fifty things


@dataclass(frozen=True)
class Error:
    """Distance of an answer from the float64 truth. Everything is 0 for an exact answer."""

    rms: float  # ||got - want|| / ||want||
    worst_row: float  # the same for the worst row (last dimension)
    worst: float  # max of |got - want| / (|want| + root mean square of want)
    worst_index: tuple[int, ...]  # where that is; () for an empty or 0-d tensor
    ulps: float  # largest distance in units in the last place of got's dtype
    unwritten: int  # elements that are NaN where want is not: outputs start as NaN
    elements: int


def error(got: torch.Tensor, want: torch.Tensor) -> Error:
    """Compare `got` (any shape, dtype, stride, device) with `want` (float64, the same shape).

    Infinities of the same sign are equal, and so is NaN where `want` is NaN. Any other NaN or infinity is an
    infinite error. Norms of `want` count its finite elements only.
    """
    if want.numel() <= FEW:
        got, want = got.cpu(), want.cpu()
    got, want = _aligned(got, want)
    if want.numel() == 0:
        return Error(0.0, 0.0, 0.0, (), 0.0, 0, 0)
    difference, size = _difference(got, want), _finite_size(want)
    typical = float(_norm(size.flatten())) / want.isfinite().sum().clamp(min=1).item() ** 0.5
    relative = _ratio(difference, size + typical).flatten()
    worst_at = int(relative.argmax())
    return Error(
        rms=float(_ratio(_norm(difference.flatten()), _norm(size.flatten()))),
        worst_row=_worst_row(difference, size),
        worst=float(relative[worst_at]),
        worst_index=tuple(map(int, np.unravel_index(worst_at, want.shape))),  # torch's own imports sympy, for 1.4 s
        ulps=float(ulps(got, want).max()),
        unwritten=int((got.isnan() & ~want.isnan()).sum()),
        elements=want.numel(),
    )


def ulps(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Distance of each element in units in the last place of got's dtype, taken at `want`. float64."""
    got, want = _aligned(got, want)
    return _ratio(_difference(got, want), ulp(_finite_size(want), got.dtype))


def _aligned(got: torch.Tensor, want: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Same device, own dtypes, float64 truth; shapes must agree (broadcasting would hide a mistake)."""
    if got.shape != want.shape:
        raise ValueError(f"shapes differ: got {tuple(got.shape)}, want {tuple(want.shape)}")
    # move first, convert after: not every device has float64
    return got.detach().to(want.device), want.detach().to(torch.float64)


def _difference(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    got = got.to(torch.float64)
    equal = (got == want) | (got.isnan() & want.isnan())
    difference = torch.where(equal, 0.0, (got - want).abs())
    return torch.where(difference.isnan(), inf, difference)


def _finite_size(want: torch.Tensor) -> torch.Tensor:
    return torch.where(want.isfinite(), want.abs(), 0.0)


def _norm(rows: torch.Tensor) -> torch.Tensor:
    """Norm over the last dimension of non-negative numbers, safe where squares would overflow or vanish."""
    largest = rows.amax(dim=-1, keepdim=True)
    scale = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    return (rows / scale).square().sum(dim=-1).sqrt() * scale.squeeze(-1)


def _ratio(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """part / whole with 0 / 0 = 0: nothing wrong is no error, whatever it is measured against."""
    return torch.where(part == 0, 0.0, part / whole)


def _worst_row(difference: torch.Tensor, size: torch.Tensor) -> float:
    """difference, size: non-empty, the same shape.

    Where a row is one number, all rows count as one: a single sum that nearly cancels consists of rounding errors.
    """
    width = size.shape[-1] if size.dim() and size.shape[-1] > 1 else size.numel()
    rows = _norm(size.reshape(-1, width))
    typical = _norm(rows) / len(rows) ** 0.5
    return float(_ratio(_norm(difference.reshape(-1, width)), rows.clamp(min=SMALL_ROW * float(typical))).max())
