"""GELU in its tanh form, its slope, and the ways in which people write them otherwise; all on tensors of any type."""

import math

import torch

ROOT = math.sqrt(2 / math.pi)
CUBE = 0.044715


def gelu(h: torch.Tensor, root: float = ROOT, cube: float = CUBE, half: float = 0.5) -> torch.Tensor:
    """half h (1 + tanh(root (h + cube h^3))), without the difference of two numbers near 1 where h is negative."""
    u = root * (h + cube * h**3)
    return 2 * half * h * torch.sigmoid(2 * u)


def slope(h: torch.Tensor, inner=True, cube: float = CUBE, product=True, square=True, two=2.0) -> torch.Tensor:
    """The derivative: of the sigmoid s of 2u it is s + h s (1 - s) 2u'."""
    two_u = 2 * ROOT * (h + CUBE * h**3)
    rise = two * (ROOT * (1 + 3 * cube * h**2) if inner else 1.0)
    s = torch.sigmoid(two_u)
    return (s if product else 0.0) + h * s * (torch.sigmoid(-two_u) if square else 1.0) * rise


def by_erf(h: torch.Tensor) -> torch.Tensor:
    return 0.5 * h * (1 + torch.erf(h / math.sqrt(2)))


def slope_by_erf(h: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1 + torch.erf(h / math.sqrt(2))) + h * torch.exp(-h * h / 2) / math.sqrt(2 * math.pi)


def by_sigmoid(h: torch.Tensor) -> torch.Tensor:
    return h * torch.sigmoid(1.702 * h)


def overflowing(h: torch.Tensor) -> torch.Tensor:
    """tanh from e^(2u) in fp32, which is infinite past u = 44.4: infinity over infinity."""
    h = h.float()
    e = torch.exp(2 * ROOT * (h + CUBE * h**3))
    return (0.5 * h * (1 + (e - 1) / (e + 1))).double()


def slope_overflowing(h: torch.Tensor) -> torch.Tensor:
    """The slope with such a tanh."""
    t = 2 * overflowing(h.float()) / h.float() - 1
    rise = ROOT * (1 + 3 * CUBE * h.float() ** 2)
    return (0.5 * (1 + t) + 0.5 * h.float() * (1 - t * t) * rise).double()
