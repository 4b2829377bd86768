"""Residual add and LayerNorm as formulas, forward and backward: the truth, and the places where a wrong one differs.

x, residual, dy, ds (R, N); weight, bias (N,). A mistake changes one keyword.
"""

import torch

from autograder.exercises.dtypes import ROUGH_BITS_ARE, roughened

ROUGH_IS = f"x, residual and gradients {ROUGH_BITS_ARE}"
NAMES = ("y", "s", "dx", "dresidual", "dweight", "dbias")


def statistics(s: torch.Tensor, v) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and reciprocal root of every row."""
    mean = s.mean(-1, keepdim=True)
    return mean, ((s - mean).square().mean(-1, keepdim=True) + v["eps"]).rsqrt()


def through(g, hat, rstd, v, means=(True, True)) -> torch.Tensor:
    """The gradient of the sum, from that of its normalised form. `means`: which of the two means are subtracted."""
    of_g = g.mean(-1, keepdim=True) if means[0] else 0.0
    of_both = hat * (g * hat).mean(-1, keepdim=True) if means[1] else 0.0
    return rstd * (g - of_g - of_both)


def gradients_given(v, dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """dy and ds with the shape of x. The gradient of a sum is one number; ds of an unused s is 0."""
    shape = v["x"].shape
    dy = v["dy"].to(dtype).expand(shape)
    return dy, v["ds"].to(dtype).expand(shape) if v["ds"] is not None else torch.zeros_like(dy)


def made(
    v, dtype=torch.float64, s=None, stats=statistics, back=through, g=None, scaled=None, dsum=None, of_weight=None,
    of_bias=None, split=None,
) -> dict:  # fmt: skip
    """All six results.

    Each argument is a function that replaces one step: s(x, residual); stats(s, v); g(dy, weight);
    scaled(hat, weight, bias) for y; dsum(d, ds); of_weight(dy, s, mean, rstd); of_bias(dy);
    split(d, ds, d with ds) for (dx, dresidual).
    """
    x, residual = v["x"].to(dtype), v["residual"].to(dtype)
    weight, bias = v["weight"].to(dtype), v["bias"].to(dtype)
    dy, ds = gradients_given(v, dtype)
    total = s(x, residual) if s else x + residual
    mean, rstd = stats(total, v)
    hat = (total - mean) * rstd
    d = back(g(dy, weight) if g else dy * weight, hat, rstd, v)
    whole = dsum(d, ds) if dsum else d + ds
    dx, dresidual = split(d, ds, whole) if split else (whole, whole)
    return {
        "y": scaled(hat, weight, bias) if scaled else hat * weight + bias,
        "s": total,
        "dx": dx,
        "dresidual": dresidual,
        "dweight": of_weight(dy, total, mean, rstd) if of_weight else (dy * hat).sum(0),
        "dbias": of_bias(dy) if of_bias else dy.sum(0),
    }


def in_types(v, results: dict) -> dict:
    """As a kernel stores them: sums over rows in fp32, the others in the type of x."""
    return {name: r.to(torch.float32 if name in ("dweight", "dbias") else v["x"].dtype) for name, r in results.items()}


def rough(v) -> dict:
    """From inputs with fewer bits."""
    given = [name for name in ("x", "residual", "dy", "ds") if v[name] is not None]
    return made(roughened(v, given, v["x"].dtype), torch.float32)
