"""How wrong is an answer: errors against float64, units in the last place, rounding to a format.

Three errors are needed, because each is blind to something. `rms` averages, so one wrong row in ten
thousand hides in it; `worst_row` sees that row; `worst` sees a single element. `ulps` measures in steps
of the output's own format, the finest answer it can give.
"""

from dataclasses import dataclass
from math import inf

import numpy as np
import torch

__all__ = ["Error", "error", "round_to", "ulp", "ulps"]

# format -> (stored fraction bits, smallest normal exponent, largest exponent)
_FORMATS = {
    "fp64": (52, -1022, 1023),
    "fp32": (23, -126, 127),
    "tf32": (10, -126, 127),
    "bf16": (7, -126, 127),
    "fp16": (10, -14, 15),
}
_NAMES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
}

# A row smaller than this share of the typical row is judged against that share instead of against itself:
# its rounding errors come from intermediates of the typical size, and a row of zeros has no size at all.
SMALL_ROW = 0.01


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


def ulp(x, dtype):
    """Spacing of a format's numbers around x: `ulp(1.0, torch.bfloat16)` is 2^-7.

    `dtype` is a torch dtype or one of "fp64", "fp32", "tf32", "bf16", "fp16". Below the smallest normal
    number it is the subnormal step. Above the largest it goes on as if the exponent had no end. For an
    integer dtype it is 1. NaN at infinity and NaN. A float gives a float, a tensor a float64 tensor.
    """
    if not isinstance(x, torch.Tensor):
        return float(ulp(torch.tensor(x, dtype=torch.float64), dtype))
    x = x.detach().to(torch.float64)
    if isinstance(dtype, torch.dtype) and not dtype.is_floating_point:
        step = torch.ones_like(x)
    else:
        fraction_bits, min_exponent, _ = _FORMATS[_format_name(dtype)]
        step = _power_of_two(_exponent(x).clamp(min=min_exponent) - fraction_bits)
    return torch.where(x.isfinite(), step, torch.nan)


def round_to(x, dtype):
    """Round to the nearest number of a format, ties to even; subnormals and overflow as the format has them.

    One rounding, straight from x; a torch cast from float64 to fp16 or bf16 passes through fp32 and may round
    twice. The answer keeps fp32 or float64 (narrower inputs give fp32); a float gives a float.
    "tf32" is fp32 with 10 fraction bits; hardware may break its ties another way.
    """
    if not isinstance(x, torch.Tensor):
        return float(round_to(torch.tensor(x, dtype=torch.float64), dtype))
    fraction_bits, min_exponent, max_exponent = _FORMATS[_format_name(dtype)]
    exact = x.detach().to(torch.float64)
    step = _power_of_two(_exponent(exact).clamp(min=min_exponent) - fraction_bits)
    # dividing by a power of two is exact, and torch.round breaks ties to even
    rounded = torch.round(exact / step) * step
    largest = (2.0 - 2.0**-fraction_bits) * 2.0**max_exponent
    rounded = torch.where(rounded.abs() > largest, torch.copysign(torch.full_like(exact, inf), exact), rounded)
    rounded = torch.where(exact.isfinite(), rounded, exact)
    return rounded.to(torch.float64 if x.dtype == torch.float64 else torch.float32)


def _format_name(dtype) -> str:
    name = _NAMES.get(dtype, dtype)
    if name not in _FORMATS:
        raise ValueError(f"unknown format {dtype!r}: use a torch float dtype or one of {sorted(_FORMATS)}")
    return name


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
    """difference, size: non-empty, the same shape; a 0-d tensor is one row of one element."""
    width = size.shape[-1] if size.dim() else 1
    rows = _norm(size.reshape(-1, width))
    typical = _norm(rows) / len(rows) ** 0.5
    return float(_ratio(_norm(difference.reshape(-1, width)), rows.clamp(min=SMALL_ROW * float(typical))).max())


def _exponent(x: torch.Tensor) -> torch.Tensor:
    """floor(log2 |x|) as int64, exact; 0, infinities and NaN give a small number, which callers clamp."""
    ordinary = x.isfinite() & (x != 0)
    exponent = torch.frexp(torch.where(ordinary, x, 1.0)).exponent.to(torch.int64) - 1
    return torch.where(ordinary, exponent, -1100)


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """2 ** exponent, from bits: exp2 and pow need not be exact. Two factors reach float64's subnormals."""
    half = exponent // 2
    parts = [((e + 1023) << 52).view(torch.float64) for e in (half, exponent - half)]
    return parts[0] * parts[1]
