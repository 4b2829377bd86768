"""MXINT8 as formulas: the truth in float64, and the places where a wrong answer differs. Mistakes change one keyword.

value = m * 2^(e - 133)        m int8 with 6 fraction bits, e uint8 with bias 127, one e for each group of a row
"""

import torch

from course_lib.numerics import round_to

BIAS, FRACTION_BITS = 127, 6
LARGEST = 127  # of a mantissa that is made; one that is read may be -128


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """2 ** exponent in float64, of bits: torch.ldexp makes its powers in fp32 in some versions, which ends at 2^127."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)


def group_count(columns: int, group: int) -> int:
    return -(-columns // group)


# ------------------------------------------------------------------------------------------------- to the format


def grouped(x: torch.Tensor, group: int) -> torch.Tensor:
    """(rows, groups, group) in float64, what the last group lacks as zeros."""
    lacking = group_count(x.shape[1], group) * group - x.shape[1]
    return torch.nn.functional.pad(x.double(), (0, lacking)).unflatten(1, (-1, group))


def largest(groups: torch.Tensor) -> torch.Tensor:
    """The largest size of each group; NaN where there is one."""
    return groups.abs().amax(-1)


def floor_log2(size: torch.Tensor) -> torch.Tensor:
    """Exact, for numbers above 0."""
    return torch.frexp(size).exponent.long() - 1


def nearest(y: torch.Tensor) -> torch.Tensor:
    """To integers, ties to even, held to +-127."""
    return y.round().clamp(-LARGEST, LARGEST)


def encode(v, top=largest, power=floor_log2, mantissa=nearest, bits=FRACTION_BITS) -> dict[str, torch.Tensor]:
    """x (rows, columns) -> mantissas (rows, columns) and exponents (rows, groups), both in float64.

    top(groups): the number that decides a group's exponent. power(top): that exponent. mantissa(x in steps): integers.
    """
    groups = grouped(v["x"], v["group"])
    size = top(groups)
    finite, some = size.isfinite(), size.isfinite() & (size > 0)
    e = torch.where(some, power(torch.where(some, size, 1.0)) + BIAS, 0).clamp(0, 254)
    m = mantissa(in_steps(groups, e, bits))
    m = torch.where(finite[..., None], m, 0.0)
    return joined(v, m, torch.where(finite, e, 255))


def in_steps(groups: torch.Tensor, e: torch.Tensor, bits: int = FRACTION_BITS) -> torch.Tensor:
    """x / 2^(e - 127 - bits): what is rounded to an integer."""
    return groups * power_of_two(BIAS + bits - e)[..., None]


def joined(v, m: torch.Tensor, e: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"mantissas": m.flatten(1)[:, : v["x"].shape[1]], "exponents": e.double()}


# ----------------------------------------------------------------------------------------------- and from it


def spread(exponents: torch.Tensor, group: int, columns: int) -> torch.Tensor:
    """The exponent of every element, (rows, columns)."""
    return exponents.repeat_interleave(group, dim=1)[:, :columns]


def value(m: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    """Of integers of one shape, in float64; NaN where e is 255."""
    exact = m.double() * power_of_two(e - (BIAS + FRACTION_BITS))
    return torch.where(e == 255, float("nan"), exact)


def decode(v, value=value, m=None, e=None) -> torch.Tensor:
    """(rows, columns) in float64. m, e: of every element, in place of what is right."""
    m = v["mantissas"] if m is None else m
    e = spread(v["exponents"], v["group"], m.shape[1]) if e is None else e
    return value(m.long(), e.long())


def in_bf16(exact: torch.Tensor) -> torch.Tensor:
    """As bf16 holds it, in float64: -2^128 becomes -inf."""
    return round_to(exact.double(), "bf16")
