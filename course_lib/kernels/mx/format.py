"""The format in plain torch: what every kernel here is compared with. Any device, no Triton.

value = m * 2^(e - 133)        m int8 with 6 fraction bits, e uint8 with bias 127: 133 = 127 + 6
"""

from dataclasses import dataclass

import torch

__all__ = ["GROUP", "Quantized", "dequantize_reference", "group_count", "quantize_reference"]

GROUP = 32  # elements that share an exponent in the OCP standard


@dataclass(frozen=True)
class Quantized:
    """A matrix in blocks of `group` adjacent elements of a row, the last one of a row as short as it comes."""

    mantissas: torch.Tensor  # (rows, columns) int8, columns adjacent
    exponents: torch.Tensor  # (rows, ceil(columns / group)) uint8, contiguous
    group: int

    @property
    def nbytes(self) -> int:
        return self.mantissas.numel() + self.exponents.numel()


def group_count(columns: int, group: int) -> int:
    assert group > 0 and group & (group - 1) == 0, f"a group is a power of two, not {group}"
    return -(-columns // group)


def _groups(x: torch.Tensor, group: int) -> torch.Tensor:
    """(rows, groups, group), what the last group lacks as zeros, which change no maximum."""
    padding = group_count(x.shape[1], group) * group - x.shape[1]
    return torch.nn.functional.pad(x, (0, padding)).unflatten(1, (-1, group))


def quantize_reference(x: torch.Tensor, group: int = GROUP) -> Quantized:
    """x (rows, columns), any floating type."""
    groups = _groups(x.double(), group)
    largest = groups.abs().amax(-1)  # NaN wins
    good, some = largest.isfinite(), largest.isfinite() & (largest > 0)
    # frexp: largest = f 2^p with f in [0.5, 1), so floor(log2(largest)) = p - 1, exactly.
    _, p = torch.frexp(torch.where(some, largest, 1.0))
    e = torch.where(some, p - 1 + 127, 0).clamp(0, 254)
    m = (groups * torch.exp2(133.0 - e.double())[..., None]).round().clamp(-127, 127)  # to nearest, ties to even
    m = torch.where(good[..., None], m, 0.0)
    e = torch.where(good, e, 255)
    return Quantized(m.flatten(1)[:, : x.shape[1]].to(torch.int8), e.to(torch.uint8), group)


def dequantize_reference(w: Quantized, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Exact in float64, then rounded once: bf16 and fp32 hold every value but (-128, 254) = -2^128, which is -inf."""
    groups = _groups(w.mantissas.double(), w.group) * torch.exp2(w.exponents.double() - 133.0)[..., None]
    groups = torch.where((w.exponents == 255)[..., None], float("nan"), groups)
    return groups.flatten(1)[:, : w.mantissas.shape[1]].to(dtype)
