"""Fewer significant bits: how a computation in a lower precision is imitated on any device."""

import torch

# significant bits of the next format down, the implicit one counted: TF32, E4M3, E5M2
_NEXT_DOWN = {torch.float32: 11, torch.float16: 4, torch.bfloat16: 3}
NEXT_DOWN_IS = "rounded to the next format down: fp32 to TF32, fp16 to E4M3, bf16 to E5M2"


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
