"""The types that kernels are given, and how a lower precision is imitated: by fewer significant bits, on any device."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
DTYPE_NAMES = {FP32: "fp32", FP16: "fp16", BF16: "bf16"}

# significant bits of the next format down, the implicit one counted: TF32, E4M3, E5M2
_NEXT_DOWN = {FP32: 11, FP16: 4, BF16: 3}
NEXT_DOWN_IS = "rounded to the next format down: fp32 to TF32, fp16 to E4M3, bf16 to E5M2"

# Significant bits of the inputs of a rough answer, which must not pass. The types have 24, 11 and 8 bits.
ROUGH_BITS = {FP32: 11, FP16: 7, BF16: 4}
ROUGH_BITS_ARE = "of fewer bits: 11 for fp32, 7 for fp16, 4 for bf16"


def significant(x: torch.Tensor, bits: int, truncate: bool = False) -> torch.Tensor:
    """x with `bits` significant bits, to nearest even or towards zero; float64, any exponent."""
    exact = x.to(torch.float64)
    mantissa, exponent = torch.frexp(exact)
    scaled = mantissa * 2.0**bits
    rounded = torch.ldexp(scaled.trunc() if truncate else scaled.round(), exponent - bits)
    return torch.where(exact.isfinite(), rounded, exact)


def next_format_down(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The values of x as the format below `dtype` (its own) would hold them; dtype of x, range of x."""
    return significant(x, _NEXT_DOWN[dtype or x.dtype]).to(x.dtype)


def roughened(v: Mapping[str, Any], names: Iterable[str], dtype: torch.dtype) -> dict[str, Any]:
    """The arguments `v` with the tensors of these names in ROUGH_BITS of `dtype`; each keeps its own type."""
    return {**v, **{name: significant(v[name], ROUGH_BITS[dtype]).to(v[name].dtype) for name in names}}
