"""The angles of a rotation: frequencies, and the two forms in which the kernel gets them.

    Tables     cos and sin of every position, fp32, made once: 8 bytes a pair and position, 4 MiB for 8192 positions
               of 64 pairs. The kernel loads them; they stay in the L2 cache.
    Computed   the frequencies alone, 8 bytes a pair. The kernel makes angle, cosine and sine itself, once for all heads
               of its program, and any position may come.

Both start from frequencies in float64. A frequency below 1 that is rounded to fp32 is off by up to 2^-25 radians (by up
to 2^-24 of itself), which at position 8192 turns by up to 2.4e-4 too much or too little; and fp32's product adds as
much again.
"""

from dataclasses import dataclass

import torch

__all__ = ["Angles", "Computed", "Tables", "rope_frequencies"]


def rope_frequencies(rotary_size: int, base: float = 10000.0) -> torch.Tensor:
    """base^(-2 j / R) in radians a position, (R / 2,) float64: the exponent holds R, the size that is turned."""
    assert rotary_size > 0 and rotary_size % 2 == 0, f"an even number of elements is turned, not {rotary_size}"
    return base ** (-torch.arange(0, rotary_size, 2, dtype=torch.float64) / rotary_size)


@dataclass(frozen=True)
class Tables:
    cos: torch.Tensor  # (positions, R / 2) fp32, contiguous
    sin: torch.Tensor

    @classmethod
    def of(cls, frequencies: torch.Tensor, positions: int, device: torch.device | str = "cpu") -> "Tables":
        """Of positions 0 .. positions - 1. Any frequencies do: those that stretch a context too."""
        angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies.double().cpu())
        return cls(*(x.to(device, torch.float32) for x in (angles.cos(), angles.sin())))

    @property
    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.cos, self.sin


@dataclass(frozen=True)
class Computed:
    high: torch.Tensor  # (R / 2,) fp32: quarter turns a position
    low: torch.Tensor  # what rounding took from `high`

    @classmethod
    def of(cls, frequencies: torch.Tensor, device: torch.device | str = "cpu") -> "Computed":
        quarters = frequencies.double().cpu() / (torch.pi / 2)
        high = quarters.float()
        return cls(high.to(device), (quarters - high.double()).float().to(device))

    @property
    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.high, self.low


Angles = Tables | Computed
