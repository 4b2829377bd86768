"""What linear_gelu and its way back should give, in float64, and how far from it may be right."""

import torch

from course_lib.device import DEVICE
from course_lib.kernels.linear_gelu import slope_reference

U = 2.0**-24  # half a unit in the last place of fp32, relative


def drawn(M, N, K, dtype):
    """x, w, bias."""
    return tuple(torch.randn(*shape, device=DEVICE).to(dtype) for shape in ((M, K), (N, K), (N,)))


def summed(a, b, bias=None):
    """(a b + bias exactly, how far a sum in fp32 may be from it): K products and additions of one unit each."""
    sizes = a.double().abs() @ b.double().abs() + (0 if bias is None else bias.double().abs())
    return a.double() @ b.double() + (0 if bias is None else bias.double()), 2 * (a.shape[1] + 8) * U * sizes


def exponent(h):
    """-2 log2(e) u, which is off by three roundings; 2^it is then off by so many more units."""
    return h.abs() * (2.3023 + 0.10295 * h * h)


def two_u(h):
    return (8 / torch.pi) ** 0.5 * (h + 0.044715 * h**3)


def exact_gelu(h):
    """torch's own takes 1 + tanh u, which in float64 too has no bits left at h = -7."""
    return h * torch.sigmoid(two_u(h))


def gelu_oracle(x, w, bias=None):
    h, off = summed(x, w.T, bias)
    a = exact_gelu(h)
    return a, 1.13 * off + (3 * exponent(h) + 8) * U * a.abs() + 1e-36  # the steepest slope is 1.129


def slope_oracle(dy, w, h):
    """(dh, its bound); h is given, and exact."""
    da, off = summed(dy, w)
    h = h.double()
    s, rest = torch.sigmoid(two_u(h)), torch.sigmoid(-two_u(h))
    size = s * (1 + (h * rest * (1.6 + 0.215 * h * h)).abs())
    return da * slope_reference(h), off * size + da.abs() * size * (3 * exponent(h) + 16) * U + 1e-36
