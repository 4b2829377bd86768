"""The rotation as formulas: the truth, what an honest kernel computes, and the places where a wrong one differs.

x (B, H, S, D); cos and sin (positions, P) in fp32, so 2 P elements of a head are turned; `layout` says which are pairs;
row s of sequence b is at position offset + positions[b, s], or offset + s where there are no positions. Mistakes change
one keyword.
"""

import torch

from autograder.exercises.dtypes import ROUGH_BITS_ARE, roughened

LAYOUTS = ("halves", "interleaved")
ROUGH_IS = f"cosines and sines {ROUGH_BITS_ARE}"
FLOOR_ULPS = 0.25  # every output is two products and a sum in fp32, rounded once


def rows(v, length: int) -> torch.Tensor:
    """The position of every row, (B or 1, S)."""
    at = v.get("positions")
    if at is None:
        at = torch.arange(length, device=v["cos"].device)[None]
    return at + v.get("offset", 0)


def look_up(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Rows of a table, (*at, P); NaN for a row that it does not hold."""
    found = table[at.clamp(0, len(table) - 1)]
    return torch.where(((at >= 0) & (at < len(table)))[..., None], found, float("nan"))


def parts(x: torch.Tensor, pairs: int, layout: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """First and second elements of the pairs, and what is not turned."""
    turning, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if layout == "halves":
        return turning[..., :pairs], turning[..., pairs:], rest
    return turning[..., 0::2], turning[..., 1::2], rest


def joined(y0: torch.Tensor, y1: torch.Tensor, rest: torch.Tensor, layout: str) -> torch.Tensor:
    y = torch.cat((y0, y1), dim=-1) if layout == "halves" else torch.stack((y0, y1), dim=-1).flatten(-2)
    return torch.cat((y, rest), dim=-1)


def rotated(x0, x1, cos, sin):
    return x0 * cos - x1 * sin, x1 * cos + x0 * sin


def backwards(x0, x1, cos, sin):
    return rotated(x0, x1, cos, -sin)


def turned(v, x, dtype=torch.float64, at=None, cos=None, sin=None, layout=None, mix=rotated) -> torch.Tensor:
    """x with its pairs turned. An argument that is given replaces the right value.

    at: positions (B or 1, S), or one for each head too, (B or 1, H or 1, S). cos, sin: other tables.
    """
    cos, sin, layout = v["cos"] if cos is None else cos, v["sin"] if sin is None else sin, layout or v["layout"]
    at = rows(v, x.shape[2]) if at is None else at
    at = at[:, None] if at.dim() == 2 else at
    x0, x1, rest = parts(x.to(dtype), cos.shape[1], layout)
    y0, y1 = mix(x0, x1, look_up(cos, at).to(dtype), look_up(sin, at).to(dtype))
    return joined(y0, y1, rest, layout)


def in_fp32(v, x: torch.Tensor, **changes) -> torch.Tensor:
    return turned(v, x, torch.float32, **changes).to(x.dtype)


def rough(v, x: torch.Tensor, **changes) -> torch.Tensor:
    """The same from tables with fewer bits."""
    return in_fp32(roughened(v, ("cos", "sin"), x.dtype), x, **changes)
