"""Bit patterns of bf16 and of MXINT8, and the decoding trick that puts the bits of MXINT8 together as bf16.

Pure Python, one number at a time: for pictures. A bit pattern is an int, written most significant bit first.
"""

import struct
from dataclasses import dataclass
from math import inf, isnan, ldexp, nan

__all__ = ["Packed", "bf16_bits", "bf16_value", "mx_value", "pack", "written"]


def written(bits: int, width: int) -> str:
    """written(5, 8) is "00000101"."""
    return format(bits & ((1 << width) - 1), f"0{width}b")


def bf16_value(bits: int) -> float:
    """What 16 bits mean: 1 of sign, 8 of exponent with bias 127, 7 of fraction."""
    return struct.unpack("<f", struct.pack("<I", (bits & 0xFFFF) << 16))[0]


def bf16_bits(x: float) -> int:
    """The bf16 number next to x, ties to even; x is one that fp32 holds, or too large for it. NaN is 0x7fc0."""
    if isnan(x):
        return 0x7FC0
    try:
        bits = struct.unpack("<I", struct.pack("<f", x))[0]
    except OverflowError:
        bits = 0x7F800000 | (0x80000000 if x < 0 else 0)
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def mx_value(m: int, e: int) -> float:
    """m * 2^(e - 133), NaN for e = 255."""
    if not (-128 <= m <= 127 and 0 <= e <= 255):
        raise ValueError(f"m is from -128 to 127 and e from 0 to 255, not {m} and {e}")
    return nan if e == 255 else ldexp(m, e - 133)


@dataclass(frozen=True)
class Packed:
    """One number decoded by putting bits together, step by step."""

    number: int  # sign | e << 7 | (|m| & 63) << 1, as bf16
    correction: int | None  # sign | e << 7, which is taken away where bit 6 of |m| is clear
    value: float  # the result
    right: bool  # whether bf16 of the true value has the same bits, any NaN as good as any other


def pack(m: int, e: int) -> Packed:
    """Decode as the studied kernel does, with |m| in 8 bits: there |-128| is -128, bit 7 set and all others clear."""
    size, sign = abs(m) & 0xFF, 0x8000 if m < 0 else 0
    number, one = sign | e << 7 | (size & 0x3F) << 1, sign | e << 7
    correction = None if size & 0x40 else one
    value = bf16_value(number) if correction is None else _minus(bf16_value(number), bf16_value(one))
    truth = mx_value(m, e)
    right = (isnan(value) and isnan(truth)) or bf16_value(bf16_bits(truth)) == value
    return Packed(number, correction, value, right)


def _minus(a: float, b: float) -> float:
    return nan if a in (inf, -inf) and a == b else a - b
