"""Floating-point formats from fp64 down to eight bits: spacing, rounding in exact emulation, bits.

A number of a format is (-1)^s 1.f 2^e with some bits of f and e between two ends, and below the smallest e the same
without the leading 1. Everything here follows from these three numbers, so a format of one's own is one line.
"""

from dataclasses import dataclass
from math import inf, nan
from typing import Literal, NamedTuple

import torch

__all__ = ["FORMATS", "Bits", "Format", "Rounding", "bits", "format_of", "round_to", "ulp"]

Rounding = Literal["to even", "away", "to zero"]


@dataclass(frozen=True)
class Format:
    name: str
    fraction_bits: int  # stored
    min_exponent: int  # of the smallest normal number
    max_exponent: int  # of the largest finite one
    infinity: bool = True  # without one, what is too large is NaN, and one pattern more is a number

    @property
    def largest(self) -> float:
        last = 2 if self.infinity else 4  # the pattern of ones alone is then NaN
        return (2.0 - last / 2 * 2.0**-self.fraction_bits) * 2.0**self.max_exponent

    @property
    def exponent_bits(self) -> int:
        return (2 - self.min_exponent).bit_length()

    @property
    def smallest(self) -> float:
        """Above 0."""
        return 2.0 ** (self.min_exponent - self.fraction_bits)


FORMATS = {
    one.name: one
    for one in (
        Format("fp64", 52, -1022, 1023),
        Format("fp32", 23, -126, 127),
        Format("tf32", 10, -126, 127),  # fp32's range, fp16's bits: what tensor cores take of an fp32 number
        Format("bf16", 7, -126, 127),
        Format("fp16", 10, -14, 15),
        Format("e5m2", 2, -14, 15),
        Format("e4m3", 3, -6, 8, infinity=False),  # OCP's, torch's e4m3fn: to 448
    )
}
_DTYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e5m2: "e5m2",
    torch.float8_e4m3fn: "e4m3",
}


def format_of(dtype) -> Format:
    """Of a torch dtype, a name, or a Format itself."""
    if isinstance(dtype, Format):
        return dtype
    found = FORMATS.get(_DTYPES.get(dtype, dtype))
    if found is None:
        raise ValueError(f"unknown format {dtype!r}: use a torch float dtype, a Format or one of {sorted(FORMATS)}")
    return found


def ulp(x, dtype):
    """Spacing of a format's numbers around x: `ulp(1.0, torch.bfloat16)` is 2^-7.

    `dtype` is a torch dtype, a Format or the name of one. Below the smallest normal number it is the subnormal step.
    Above the largest it goes on as if the exponent had no end. For an integer dtype it is 1. NaN at infinity and NaN.
    A float gives a float, a tensor a float64 tensor.
    """
    if not isinstance(x, torch.Tensor):
        return float(ulp(torch.tensor(x, dtype=torch.float64), dtype))
    x = x.detach().to(torch.float64)
    if isinstance(dtype, torch.dtype) and not dtype.is_floating_point:
        step = torch.ones_like(x)
    else:
        step = _step(x, format_of(dtype))
    return torch.where(x.isfinite(), step, torch.nan)


def round_to(x, dtype, rounding: Rounding = "to even", saturate: bool = False):
    """Round to a number of a format; subnormals and overflow as the format has them.

    One rounding, straight from x; a torch cast from float64 to fp16 or bf16 passes through fp32 and may round twice.
    Ties go to the even neighbour, or "away" from zero (what cvt.rna does for tf32); "to zero" cuts off, as tensor cores
    do with fp32 factors. `saturate`: what is too large becomes the largest, as GPUs do it on the way to eight bits. The
    answer keeps fp32 or float64 (narrower inputs give fp32); a float gives a float.
    """
    if not isinstance(x, torch.Tensor):
        return float(round_to(torch.tensor(x, dtype=torch.float64), dtype, rounding, saturate))
    to = format_of(dtype)
    exact = x.detach().to(torch.float64)
    step = _step(exact, to)
    rounded = _whole(exact / step, rounding) * step  # dividing by a power of two is exact
    over = to.largest if saturate or rounding == "to zero" else inf if to.infinity else nan
    rounded = torch.where(rounded.abs() > to.largest, torch.copysign(torch.full_like(exact, over), exact), rounded)
    beyond = exact.isinf() & (saturate or not to.infinity)  # infinity itself, where there is none
    beyond_as = torch.copysign(torch.full_like(exact, to.largest if saturate else nan), exact)
    rounded = torch.where(exact.isfinite(), rounded, torch.where(beyond, beyond_as, exact))
    return rounded.to(torch.float64 if x.dtype == torch.float64 else torch.float32)


def _whole(x: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    if rounding == "to even":
        return torch.round(x)  # which breaks ties to even
    if rounding == "away":
        # x + 0.5 may itself round up, just below a half: so the fraction is looked at
        down = x.abs().floor()
        return torch.copysign(torch.where(x.abs() - down >= 0.5, down + 1, down), x)
    if rounding == "to zero":
        return torch.trunc(x)
    raise ValueError(f'rounding is "to even", "away" or "to zero", not {rounding!r}')


class Bits(NamedTuple):
    sign: str
    exponent: str
    fraction: str

    def __str__(self) -> str:
        return " ".join(self)


def bits(x: float, dtype) -> Bits:
    """The bits of a number of a format: `str(bits(-0.15625, "e5m2"))` is "1 01100 01". x must be one."""
    of = format_of(dtype)
    x = float(x)
    if x == x and round_to(x, of) != x:
        raise ValueError(f"{x!r} is no {of.name} number; the nearest is {round_to(x, of)!r}")
    sign = "1" if str(x).startswith("-") else "0"
    ones = "1" * of.exponent_bits
    if x != x:
        return Bits(sign, ones, "1" * of.fraction_bits if not of.infinity else "1".ljust(of.fraction_bits, "0"))
    if abs(x) == inf:
        return Bits(sign, ones, "0" * of.fraction_bits)
    exponent = max(int(_exponent(torch.tensor(abs(x), dtype=torch.float64))), of.min_exponent)
    units = int(abs(x) / 2.0 ** (exponent - of.fraction_bits))
    normal = units >> of.fraction_bits  # 0: a subnormal number, or 0
    field = exponent - of.min_exponent + 1 if normal else 0
    fraction = units - (normal << of.fraction_bits)
    return Bits(sign, f"{field:0{of.exponent_bits}b}", f"{fraction:0{of.fraction_bits}b}")


def _step(x: torch.Tensor, of: Format) -> torch.Tensor:
    return _power_of_two(_exponent(x).clamp(min=of.min_exponent) - of.fraction_bits)


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
