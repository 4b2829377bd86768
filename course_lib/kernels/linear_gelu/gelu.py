"""GELU in its tanh form, and its slope: the part that every kernel of this package shares.

    gelu(h) = h/2 (1 + tanh u) = h / (1 + e^(-2u))        u = sqrt(2 / pi) (h + 0.044715 h^3)

The second way of writing it is the one to compute: one exponential, and no 1 + tanh u, which for h below -3 is a small
difference of two numbers near 1. (tanh.approx, one instruction, is off by 2^-11 of 1 there: 18 % of gelu(-3).)
"""

import torch
import triton
import triton.language as tl

__all__ = ["gelu", "gelu_and_slope", "gelu_reference", "slope_reference"]


def gelu_reference(h: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(h, approximate="tanh")


def slope_reference(h: torch.Tensor) -> torch.Tensor:
    """d gelu / d h in the type of h: s + h s (1 - s) 2u', where s = sigmoid(2u), and 1 - s is sigmoid(-2u)."""
    two_u = (8 / torch.pi) ** 0.5 * (h + 0.044715 * h**3)
    rise = (8 / torch.pi) ** 0.5 * (1 + 3 * 0.044715 * h**2)
    return torch.sigmoid(two_u) * (1 + h * torch.sigmoid(-two_u) * rise)


@triton.jit
def _exponential(h):
    """e^(-2u), as a power of two: -2 log2(e) u = h (-2.3022 - 0.10294 h^2). Infinite where gelu(h) is 0."""
    return tl.exp2(h * (-2.302208198144325 - 0.10294323958002349 * h * h))


@triton.jit
def gelu(h):
    """fp32 in, fp32 out: three multiplications, two additions, one exp2, one division."""
    return h / (1.0 + _exponential(h))


@triton.jit
def gelu_and_slope(h):
    """gelu(h) and its derivative s + gelu(h) (1 - s) 2u', with s = 1 / (1 + e^(-2u)): one exp2 for both."""
    e = _exponential(h)
    s = 1.0 / (1.0 + e)
    value = h * s
    # Where s is near 1 the difference would keep few bits, and at h = 9 it is multiplied by 170.
    rest = tl.where(h > 0, e * s, 1.0 - s)
    return value, s + value * rest * (1.5957691216057308 + 0.21406444881780076 * h * h)
