"""The MLP as formulas, forward and backward: the truth, and the places where a wrong one differs.

x (M, d), w1 (n, d), b1 (n,), w2 (d, n), b2 (d,), dy (M, d) or one number. A mistake changes one keyword.
"""

import torch

from autograder.exercises.dtypes import ROUGH_BITS_ARE, roughened
from autograder.exercises.mlp.gelu import gelu, slope

NAMES = ("y", "dx", "dw1", "db1", "dw2", "db2")
ROUGH_IS = f"x, weights and gradient {ROUGH_BITS_ARE}"


def passes(
    v, dtype=torch.float64, value=gelu, rise=slope, again=None, of_w1=None, of_w2=None, of_x=None, of_b1=None,
    of_b2=None, rounded=None, biased=(True, True),
) -> dict:  # fmt: skip
    """All six results.

    value, rise: GELU and its slope. again(x, w1, b1): h as the backward pass computes it. of_..: a gradient, from a
    dict of all values of the backward pass. rounded: applied to each value that is stored between products.
    """
    rounded = rounded or (lambda t: t)
    x, w1, b1, w2, b2 = (v[name].to(dtype) for name in ("x", "w1", "b1", "w2", "b2"))
    dy = v["dy"].to(dtype).expand(x.shape)
    h = rounded(x @ w1.mT + (b1 if biased[0] else 0.0))
    y = rounded(value(h)) @ w2.mT + (b2 if biased[1] else 0.0)
    h = again(x, w1, b1) if again else h
    a, da = rounded(value(h)), rounded(dy @ w2)
    dh = rounded(da * rise(h))
    there = {"x": x, "w1": w1, "w2": w2, "dy": dy, "h": h, "a": a, "da": da, "dh": dh}
    return {
        "y": y,
        "dx": of_x(there) if of_x else dh @ w1,
        "dw1": of_w1(there) if of_w1 else dh.mT @ x,
        "db1": of_b1(there) if of_b1 else dh.sum(0),
        "dw2": of_w2(there) if of_w2 else dy.mT @ a,
        "db2": of_b2(there) if of_b2 else dy.sum(0),
    }


def honest(v) -> dict:
    """fp32 arithmetic; what goes through memory between products has the type of x."""
    dtype = v["x"].dtype
    made = passes(v, torch.float32, rounded=lambda t: t.to(dtype).float())
    return {name: t.to(dtype) for name, t in made.items()}


def rough(v) -> dict:
    return honest(roughened(v, ("x", "w1", "w2", "dy"), v["x"].dtype))
