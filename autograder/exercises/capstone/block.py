"""One block of a vision tower as formulas, forward and backward: the truth, and the places where a wrong one differs.

x, dy (B, N, d), lengths (B,), the twelve parameters of the block, heads. A mistake changes some of `Ways`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from autograder.exercises.dtypes import ROUGH_BITS_ARE, roughened
from autograder.exercises.mlp.gelu import gelu, slope

EPS = 1e-5
PARAMETERS = tuple("n1_w n1_b qkv_w qkv_b out_w out_b n2_w n2_b up_w up_b down_w down_b".split())
GRADIENTS = tuple(f"d_{name}" for name in PARAMETERS)
NAMES = ("y", "dx", *GRADIENTS)
ROUGH_IS = f"x, dy and the matrices {ROUGH_BITS_ARE}"
ROWS = 2048  # of x that are computed at a time: at So400m's widths one hidden layer of them takes 70 MB in float64


def real_keys(v) -> torch.Tensor:
    """(B, N), true before the length."""
    return torch.arange(v["x"].shape[1], device=v["x"].device) < v["lengths"][:, None]


def thirds(qkv: torch.Tensor, heads: int) -> list[torch.Tensor]:
    """(B, N, 3 d) -> q, k, v (B, heads, N, D)."""
    batch, n, _ = qkv.shape
    return [t.transpose(1, 2) for t in qkv.view(batch, n, 3, heads, -1).unbind(2)]


def joined(dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor) -> torch.Tensor:
    """The other way."""
    return torch.stack([t.transpose(1, 2) for t in (dq, dk, dv)], 2).flatten(2)


def statistics(x: torch.Tensor, eps: float = EPS, fewer: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(x - mean) / deviation, and 1 / deviation, of each row; `fewer` than the row has are divided by."""
    centred = x - x.mean(-1, keepdim=True)
    rstd = (centred.square().sum(-1, keepdim=True) / (x.shape[-1] - fewer) + eps).rsqrt()
    return centred * rstd, rstd


def through_norm(g: torch.Tensor, hat: torch.Tensor, rstd: torch.Tensor, by_mean=True, by_deviation=True):
    """The gradient of a norm's input; g is that of its output times the weight."""
    mean = g.mean(-1, keepdim=True) if by_mean else 0.0
    return rstd * (g - mean - (hat * (g * hat).mean(-1, keepdim=True) if by_deviation else 0.0))


@dataclass(frozen=True)
class Ways:
    """How a block is computed; as it stands, rightly."""

    keys: Callable = real_keys  # of the arguments: which keys are used, forward
    keys_again: Callable | None = None  # the same backward, if it differs
    queries: Callable | None = None  # of the arguments: others attend to nothing
    scale: Callable = lambda head_size, width: head_size**-0.5
    scales_again: Callable = lambda scale: (scale, scale)  # what dq and dk are multiplied with
    delta: bool = True
    apart: Callable = thirds
    together: Callable = joined
    eps: float = EPS
    fewer: int = 0
    norm_weight_again: bool = True
    through_norm: Callable = through_norm
    value: Callable = gelu
    rise: Callable = slope
    unbiased: tuple[str, ...] = ()  # biases that are not added
    skips: tuple[bool, bool] = (True, True)  # whether a branch's input is added to its result
    skips_normed: bool = False  # what is added is the norm of the input
    skips_again: tuple[bool, bool] = (True, True)  # whether gradients go around a branch too
    of: Mapping[str, Callable] = field(default_factory=dict)  # a gradient, from all values as rows


def passes(v, dtype=torch.float64, rounded: Callable | None = None, **changed) -> dict:
    """All results. rounded: is applied to what goes through memory between products."""
    ways, images = Ways(**changed), max(1, ROWS // v["x"].shape[1])
    known = dict(v) | {name: v[name].to(dtype) for name in PARAMETERS}
    made: dict[str, torch.Tensor] = {}
    for first in range(0, len(v["x"]), images):
        part = {name: v[name][first : first + images] for name in ("x", "lengths", "dy")}
        found = _some_images(known | part, dtype, rounded or (lambda t: t), ways)
        for name, t in found.items():
            if name not in made:
                made[name] = [t] if name in ("y", "dx") else t
            elif name in ("y", "dx"):
                made[name].append(t)
            else:
                made[name] += t
    return {name: torch.cat(t) if isinstance(t, list) else t for name, t in made.items()}


def _some_images(v, dtype, r: Callable, ways: Ways) -> dict:
    """The results of some images; r rounds."""
    x, dy, w = v["x"].to(dtype), v["dy"].to(dtype), v
    b = {name: 0.0 if name in ways.unbiased else w[name] for name in PARAMETERS if name.endswith("_b")}

    hat1, rstd1 = statistics(x, ways.eps, ways.fewer)
    n1 = r(hat1 * w["n1_w"] + b["n1_b"])
    seen = _Attention(r(n1 @ w["qkv_w"].mT + b["qkv_b"]), v, r, ways)
    h = r(seen.rows @ w["out_w"].mT + b["out_b"])
    h = r((n1 if ways.skips_normed else x) + h) if ways.skips[0] else h
    hat2, rstd2 = statistics(h, ways.eps, ways.fewer)
    n2 = r(hat2 * w["n2_w"] + b["n2_b"])
    u = r(n2 @ w["up_w"].mT + b["up_b"])
    g = r(ways.value(u))
    m = r(g @ w["down_w"].mT + b["down_b"])
    y = (n2 if ways.skips_normed else h) + m if ways.skips[1] else m

    dg = r(dy @ w["down_w"])
    du = r(dg * ways.rise(u))
    dn2 = r(du @ w["up_w"])
    dh = ways.through_norm(dn2 * w["n2_w"] if ways.norm_weight_again else dn2, hat2, rstd2)
    dh = r(dh + dy) if ways.skips_again[1] else r(dh)
    dqkv = seen.gradient(r(dh @ w["out_w"]))
    dn1 = r(dqkv @ w["qkv_w"])
    dx = ways.through_norm(dn1 * w["n1_w"] if ways.norm_weight_again else dn1, hat1, rstd1)
    dx = dx + dh if ways.skips_again[0] else dx

    there = {"x": x, "dy": dy, "hat1": hat1, "n1": n1, "o": seen.rows, "h": h, "hat2": hat2, "n2": n2, "u": u, "g": g}
    there |= {"dg": dg, "du": du, "dn2": dn2, "dh": dh, "dqkv": dqkv, "dn1": dn1}
    rows = {name: t.flatten(0, 1) for name, t in there.items()} | {"lengths": v["lengths"], "n": x.shape[1]}
    return {"y": y, "dx": dx} | {f"d_{name}": (ways.of.get(name) or RIGHT[name])(rows) for name in PARAMETERS}


# The gradient of each parameter from rows of all values
RIGHT: dict[str, Callable] = {
    "n1_w": lambda t: (t["dn1"] * t["hat1"]).sum(0),
    "n1_b": lambda t: t["dn1"].sum(0),
    "qkv_w": lambda t: t["dqkv"].mT @ t["n1"],
    "qkv_b": lambda t: t["dqkv"].sum(0),
    "out_w": lambda t: t["dh"].mT @ t["o"],
    "out_b": lambda t: t["dh"].sum(0),
    "n2_w": lambda t: (t["dn2"] * t["hat2"]).sum(0),
    "n2_b": lambda t: t["dn2"].sum(0),
    "up_w": lambda t: t["du"].mT @ t["n2"],
    "up_b": lambda t: t["du"].sum(0),
    "down_w": lambda t: t["dy"].mT @ t["g"],
    "down_b": lambda t: t["dy"].sum(0),
}


class _Attention:
    """softmax(q kᵀ scale) v, and the way back."""

    def __init__(self, qkv: torch.Tensor, v, r: Callable, ways: Ways):
        self.r, self.ways, heads = r, ways, v["heads"]
        self.q, self.k, self.v = ways.apart(qkv, heads)
        self.scale = ways.scale(self.q.shape[-1], qkv.shape[-1] // 3)
        s = self.q @ self.k.mT * self.scale
        seen = ways.keys(v)[:, None, None]
        self.lse = s.masked_fill(~seen, -torch.inf).logsumexp(-1, keepdim=True)
        self.p = torch.exp(s - self.lse).masked_fill(~seen, 0.0)
        self.o = r(r(self.p) @ self.v)
        if ways.queries:
            self.o, self.p = (t.masked_fill(~ways.queries(v)[:, None, :, None], 0.0) for t in (self.o, self.p))
        if ways.keys_again:
            again = ways.keys_again(v)[:, None, None]
            self.p = torch.exp(s - self.lse).masked_fill(~again, 0.0)

    @property
    def rows(self) -> torch.Tensor:
        return self.o.transpose(1, 2).flatten(2)

    def gradient(self, do: torch.Tensor) -> torch.Tensor:
        """(B, N, d) -> (B, N, 3 d)."""
        do = do.view(*do.shape[:2], self.q.shape[1], -1).transpose(1, 2)
        delta = (self.o * do).sum(-1, keepdim=True) if self.ways.delta else 0.0
        ds = self.r(self.p * (do @ self.v.mT - delta))
        of_q, of_k = self.ways.scales_again(self.scale)
        dq, dk, dv = ds @ self.k * of_q, ds.mT @ self.q * of_k, self.r(self.p).mT @ do
        return self.ways.together(*map(self.r, (dq, dk, dv)))


def honest(v) -> dict:
    """fp32 arithmetic; what goes through memory between products has the type of x."""
    dtype = v["x"].dtype
    made = passes(v, torch.float32, rounded=lambda t: t.to(dtype).float())
    return {name: t.to(dtype) for name, t in made.items()}


def rough(v) -> dict:
    return honest(roughened(v, ("x", "dy", "qkv_w", "out_w", "up_w", "down_w"), v["x"].dtype))
