"""Attention of one projection as formulas, forward and backward: the truth, and the places where a wrong one differs.

x (B, N, d), w (3 d, d), b (3 d,), lengths (B,), `do` (B, N, d) or one number. Between the products stands
autograder/exercises/flash/attention.py, with q, k and v (B, H, N, D). A mistake changes one keyword.
"""

from collections.abc import Mapping

import torch

from autograder.exercises.dtypes import ROUGH_BITS_ARE, roughened
from autograder.exercises.flash.attention import attend, backward_in_fp32, forward_in_fp32, gradients

NAMES = ("o", "dx", "dw", "db")
ROUGH_IS = f"x, w and gradient {ROUGH_BITS_ARE}"
HEADS_OF = {  # letters of the rows of w, from the outermost to the innermost: which of the three, head, element
    "3HD": lambda rows, heads: rows.unflatten(-1, (3, heads, -1)),
    "H3D": lambda rows, heads: rows.unflatten(-1, (heads, 3, -1)).transpose(-2, -3),
    "HD3": lambda rows, heads: rows.unflatten(-1, (heads, -1, 3)).movedim(-1, -3),
}

Parts = Mapping[str, torch.Tensor]  # q, k and v, or their gradients


def apart(rows: torch.Tensor, heads: int, order="3HD", names="qkv") -> dict[str, torch.Tensor]:
    """q, k and v (B, H, N, D) of the rows (B, N, 3 d)."""
    parts = HEADS_OF[order](rows, heads).unbind(-3)
    return {name: part.transpose(1, 2) for name, part in zip(names, parts, strict=True)}


def together(parts: Parts, order="3HD", names="qkv") -> torch.Tensor:
    """The rows (B, N, 3 d) of dq, dk and dv."""
    stacked = torch.stack([parts[f"d{name}"].transpose(1, 2) for name in names], dim=2)  # (B, N, 3, H, D)
    if order == "H3D":
        stacked = stacked.transpose(2, 3)
    if order == "HD3":
        stacked = stacked.movedim(2, 4)
    return stacked.flatten(2)


def as_rows(o: torch.Tensor) -> torch.Tensor:
    """(B, H, N, D) -> (B, N, d)."""
    return o.transpose(1, 2).flatten(2)


def by_heads(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """(B, N, d) -> (B, H, N, D)."""
    return rows.unflatten(-1, (heads, -1)).transpose(1, 2)


def passes(
    v, dtype=torch.float64, forth=attend, back=gradients, split=apart, joined=together, out_rows=as_rows,
    dout_heads=by_heads, of_x=None, of_w=None, of_b=None, again=None, rounded=None, biased=True,
) -> dict:  # fmt: skip
    """All four results.

    forth, back: attention and its gradients, from the arguments that flash.attention takes. split, joined: rows of the
    projection to q, k, v, and gradients to rows. out_rows, dout_heads: the result as rows, its gradient by heads.
    of_..: a gradient, from a dict of all values of the backward pass. again: x as the backward pass sees it.
    rounded: applied to each value that is stored between two steps.
    """
    rounded = rounded or (lambda t: t)
    x, w, b = (v[name].to(dtype) for name in ("x", "w", "b"))
    heads, do = v["heads"], v["do"].to(dtype).expand(x.shape)
    parts = split(rounded(x @ w.mT + (b if biased else 0.0)), heads)
    there = {**parts, "causal": False, "scale": (x.shape[-1] // heads) ** -0.5, "k_lengths": v["lengths"]}
    there |= forth(there)
    there["out"] = rounded(there["out"])
    made = back(there | {"dout": dout_heads(do, heads)})
    drows = rounded(joined(made))
    x = x if again is None else again(x)
    values = {"x": x, "w": w, "do": do, "drows": drows}
    return {
        "o": out_rows(there["out"]),
        "dx": of_x(values) if of_x else drows @ w,
        "dw": of_w(values) if of_w else drows.flatten(0, 1).mT @ x.flatten(0, 1),
        "db": of_b(values) if of_b else drows.sum((0, 1)),
    }


def honest(v) -> dict:
    """fp32 arithmetic; what goes through memory between two steps has the type of x, and so have p and ds.

    A score is a sum over D. Backward adds it up in another order than forward, as a kernel does whose product has keys
    and queries exchanged: p is then no longer exactly what forward divided by its sum.
    """
    dtype = v["x"].dtype

    def typed(t) -> dict:
        """A step of flash.attention rounds p and ds to the type of the tensors it is given."""
        return t | {name: t[name].to(dtype) for name in ("q", "k", "v", "out", "dout") if name in t}

    def back(t) -> dict:
        other = {name: t[name].flip(-1) for name in ("q", "k", "v", "out", "dout")}
        return {name: made.flip(-1) for name, made in backward_in_fp32(typed(t | other)).items()}

    made = passes(v, torch.float32, lambda t: forward_in_fp32(typed(t)), back, rounded=lambda t: t.to(dtype).float())
    return {name: t.to(dtype) for name, t in made.items()}


def rough(v) -> dict:
    return honest(roughened(v, ("x", "w", "do"), v["x"].dtype))
