"""Wrong ways from mantissas and exponents to numbers: wrong elements, (m, e) -> float64, and wrong exponents.

mx.dequantize and mx.gemv share these mistakes.
"""

import torch

from autograder.exercises.mx.mxint8 import group_count, power_of_two, spread, value
from autograder.exercises.strides import as_read

NAN, INF = float("nan"), float("inf")
BLOCKS = (16, 32, 64, 128, 256)  # longer ones hold a whole row of any case


# ---- elements: bits put together


def _bf16(bits: torch.Tensor) -> torch.Tensor:
    """What 16 bits mean."""
    return ((bits & 0xFFFF) ^ 0x8000).sub(0x8000).to(torch.int16).view(torch.bfloat16).double()


def packed(m: torch.Tensor, e: torch.Tensor, correct="clear", signed=True) -> torch.Tensor:
    """Sign, exponent and six bits of |m| as bf16, less what the implicit one adds where bit 6 of |m| is clear.

    correct: "clear", "always", "never". signed: the correction has the sign of m. |-128| is -128 in 8 bits.
    """
    size = m.abs() & 0xFF
    sign = (m < 0).long() << 15
    number = _bf16(sign | e << 7 | (size & 0x3F) << 1)
    correction = _bf16((sign if signed else 0) | e << 7)
    clear = {"clear": size & 0x40 == 0, "always": torch.ones_like(size, dtype=torch.bool)}
    return torch.where(clear.get(correct, size != size), number - correction, number)


def but_minus_128(m, e, becomes: float):
    """Right but for m = -128: `becomes` in its place."""
    return torch.where(m == -128, value(torch.full_like(m, int(becomes)), e), value(m, e))


def but_exponent_0(m, e, how: str):
    other = packed(m, e) if how == "packed" else m.double() * 0.0
    return torch.where(e == 0, other, value(m, e))


def but_255(m, e, how: str):
    """e = 255: a number as for other exponents, an infinity, what packing makes of it, zero, or NaN but for m = 0."""
    number = m.double() * power_of_two(e - 133)
    infinite = torch.where(m == 0, NAN, m.sign() * INF)
    other = {
        "number": number,
        "infinity": infinite,
        "packed": packed(m, e),
        "zero": 0.0 * number,
        "NaN but for 0": torch.where(m == 0, 0.0, NAN),
    }[how]
    return torch.where(e == 255, other, value(m, e))


def without_subnormals(m, e, of_scale: bool):
    """Zeros in place of numbers below 2^-126, or of all products with a scale below 2^-126."""
    exact = value(m, e)
    lost = e < 7 if of_scale else exact.abs() < 2.0**-126
    return torch.where(lost, 0.0, exact)


def without_case(m, e, of_255: str):
    """The scale of the bits `(e - 6) << 23` for every e: below 6 they are those of a negative scale, and huge."""
    bits = (e - 6) << 23
    scale = ((bits & 0xFFFFFFFF) ^ 0x80000000).sub(0x80000000).to(torch.int32).view(torch.float32).double()
    if of_255 == "NaN":
        scale = torch.where(e == 255, NAN, scale)
    product = m.double() * scale
    return torch.where(product.abs() >= 2.0**128, product.sign() * INF, product)


def in_8_bits(m, e, of_255: str):
    """`<< 23` of an 8-bit integer gives 0. The branch for e below 7 is right, and perhaps that for NaN."""
    lost = (e > 6) & (e < 255) if of_255 == "NaN" else e > 6
    return torch.where(lost, 0.0, value(m, e))


def shifted_scale(m, e, first: str):
    """`e << 23` is 2^(e - 127), 0 for e = 0 and infinite for 255; `first`: what it is multiplied with."""
    scale = torch.where(e == 0, 0.0, torch.where(e == 255, INF, torch.exp2(e.double() - 127)))
    product = m.double() * scale
    product = torch.where(product.abs() >= 2.0**128, product.sign() * INF, product)
    return product / 64 if first == "mantissa" else m.double() / 64 * scale


def times(m, e, factor: float):
    return factor * value(m, e)


def unsigned(m, e):
    return value(m & 0xFF, e)


def sign_and_size(m, e):
    """The low seven bits taken for the size, as in a format with a bit for the sign."""
    return value(torch.where(m < 0, -(m & 0x7F), m), e)


def signed_exponent(m, e):
    return torch.where(e >= 128, m.double() * power_of_two(e - 256 - 133), value(m, e))


def in_fp16(m, e):
    scale = torch.exp2(e.double() - 133).half()
    return (m.half() * scale).double()


def clamped(m, e):
    return value(m, e).clamp(-3.3895313892515355e38, 3.3895313892515355e38)


# ---- exponents: which one belongs to an element, as (rows, columns)


def _exponents(v) -> tuple[torch.Tensor, int]:
    return v["exponents"], v["mantissas"].shape[1]


def by_column(v, wraps: bool):
    """The column itself for an index: past the groups of the row, or back to the first of them."""
    e, columns = _exponents(v)
    if wraps:
        return e[:, torch.arange(columns, device=e.device) % max(1, e.shape[1])]
    return as_read(e, (len(e), columns), (e.shape[1], 1))


def of_first_group(v):
    e, columns = _exponents(v)
    return e[:, :1].expand(-1, columns)


def of_last_group(v):
    e, columns = _exponents(v)
    return e[:, -1:].expand(-1, columns)


def of_block(v, block: int, largest=False):
    """One exponent a block of columns, that of its first, or the largest."""
    e, columns = _exponents(v)
    first = torch.arange(columns, device=e.device) // block * block // v["group"]
    if not largest:
        return e[:, first]
    many = max(1, block // v["group"])
    padded = torch.nn.functional.pad(e, (0, -e.shape[1] % many))
    return spread(padded.unflatten(1, (-1, many)).amax(2), max(block, v["group"]), columns)


def transposed(v):
    e, columns = _exponents(v)
    return spread(as_read(e, e.shape, (1, len(e))), v["group"], columns)


def rounded_down(v):
    """Rows of exponents columns // group apart."""
    e, columns = _exponents(v)
    return spread(as_read(e, e.shape, (columns // v["group"], 1)), v["group"], columns)


def of_32(v):
    """Groups of 32, whatever the group."""
    e, columns = _exponents(v)
    return spread(as_read(e, (len(e), group_count(columns, 32)), (e.shape[1], 1)), 32, columns)


def across_rows(v):
    """Groups counted over the flat matrix."""
    e, columns = _exponents(v)
    at = torch.arange(len(e) * columns, device=e.device) // v["group"]
    return as_read(e, (int(at[-1]) + 1,), (1,))[at].view(len(e), columns) if at.numel() else e[:, :0]


def of_first_row(v):
    e, columns = _exponents(v)
    return spread(e[:1].expand_as(e), v["group"], columns)
