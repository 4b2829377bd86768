"""The tower and its gradients as formulas: the truth, and the places where a wrong one differs.

Values are those of a call of capstone.tower: patches (B, N, numbers a patch), lengths (B,), dy (B, width), heads, and
the parameters by kind. A mistake changes one keyword of `step`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from autograder.exercises.dtypes import ROUGH_BITS_ARE, roughened
from autograder.exercises.mlp.gelu import gelu, slope
from autograder.inside.probes.assembled import GROUPS, KINDS, grouped

EPS = 1e-5
NAMES = ("y", *GROUPS)
ROUGH_IS = f"patches, parameters and gradient {ROUGH_BITS_ARE}"
Parts = Mapping[str, torch.Tensor]


class _Gelu(torch.autograd.Function):
    """A value and a slope that need not belong together."""

    @staticmethod
    def forward(ctx, h, value, rise):
        ctx.save_for_backward(h)
        ctx.rise = rise
        return value(h)

    @staticmethod
    def backward(ctx, da):
        (h,) = ctx.saved_tensors
        return da * ctx.rise(h), None, None


class _Scaled(torch.autograd.Function):
    """x w + b, whose sums over rows are rounded at each step, as in torch's own norm of 16 bits on a CPU."""

    @staticmethod
    def forward(ctx, x, w, b, rounded):
        ctx.save_for_backward(x, w)
        ctx.rounded = rounded
        return x * w + b

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dw, db = (torch.zeros_like(w) for _ in "wb")
        for of_w, of_b in zip((dy * x).flatten(0, -2), dy.flatten(0, -2), strict=True):
            dw, db = ctx.rounded(dw + of_w), ctx.rounded(db + of_b)
        return dy * w, dw, db, None


class _Weighted(torch.autograd.Function):
    """softmax(scale q kᵀ) v over the keys that are seen, as kernels have it: p and ds are rounded before a product, and
    delta is of the o that is stored. What `changed` names is wrong in the gradients.
    """

    @staticmethod
    def forward(ctx, q, k, v, see, scale, rounded, changed):
        p = (q @ k.mT * scale).masked_fill(~see, float("-inf")).softmax(-1)
        o = rounded(rounded(p) @ v)
        ctx.save_for_backward(q, k, v, p, o)
        ctx.scale, ctx.rounded, ctx.changed = scale, rounded, changed
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, p, o = ctx.saved_tensors
        scaled = {name: 1.0 if f"scale of {name}" in ctx.changed else ctx.scale for name in "qk"}
        delta = 0.0 if "delta" in ctx.changed else (o * do).sum(-1, keepdim=True)
        ds = ctx.rounded(p * (do @ v.mT - delta))
        made = {"q": ds @ k * scaled["q"], "k": ds.mT @ q * scaled["k"], "v": ctx.rounded(p).mT @ do}
        order = next((one for one in ctx.changed if len(one) == 3), "qkv")
        return *(made[name] for name in order), None, None, None, None


def by_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(B, N, width) -> (B, heads, N, head size)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def head_last(x: torch.Tensor, heads: int) -> torch.Tensor:
    """The same with the heads next to each other."""
    return x.unflatten(-1, (-1, heads)).movedim(-1, 1)


def together(o: torch.Tensor) -> torch.Tensor:
    """(B, heads, N, head size) -> (B, N, width)."""
    return o.transpose(1, 2).flatten(2)


def mean_of_real(x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    return (x * real[..., None]).sum(1) / real.sum(-1, keepdim=True)


def pre_norm(x, first, second, attend, mlp, rounded):
    """first, second: norms; attend, mlp: what the two branches add."""
    x = rounded(x + attend(first(x)))
    return rounded(x + mlp(second(x)))


def step(
    v: Mapping[str, Any], dtype=torch.float64, rounded: Callable | None = None, value=gelu, rise=None,
    scale: Callable[[int], float] = lambda size: size**-0.5, see: Callable | None = None, block: Callable = pre_norm,
    apart: Callable = by_heads, joined: Callable = together, pooled: Callable = mean_of_real,
    of_layer: Callable[[Parts], Parts] = dict, renamed: Callable[[Parts], Parts] = dict,
    backward: Sequence[str] = (),
) -> dict[str, torch.Tensor]:  # fmt: skip
    """y and the gradients of `GROUPS`.

    rounded: applied to each value that is stored. value, rise: GELU and a slope, where it is not that of value. scale:
    of the head size. see(real): which keys a query sees (B, N). of_layer: the parameters of a layer, as they are used.
    renamed: the gradients by kind, as they are called. backward: what the gradient of attention lacks, or the order in
    which its three parts come.
    """
    cut, rounded = rounded is not None, rounded or (lambda t: t)
    given = {name: v[name].detach().to(dtype).requires_grad_() for name in KINDS}
    patches, lengths, heads = v["patches"], v["lengths"].long(), v["heads"]
    real = torch.arange(patches.shape[1], device=patches.device) < lengths[:, None]
    seen = (see(real) if see else real)[:, None, None]

    def linear(x, p, name):
        return rounded(x @ p[f"{name}_w"].mT + p[f"{name}_b"])

    def norm(x, w, b):
        # statistics that are kept for the backward pass are of that type too, on a CPU
        x = x - rounded(x.mean(-1, keepdim=True))
        x = x * rounded((x.square().mean(-1, keepdim=True) + EPS).rsqrt())
        return rounded(_Scaled.apply(x, w, b, rounded) if v["patches"].element_size() == 2 and cut else x * w + b)

    def attend(p, x):
        q, k, val = (apart(linear(x, p, name), heads) for name in "qkv")
        o = _Weighted.apply(q, k, val, seen, scale(q.shape[-1]), rounded, backward)
        return linear(joined(o), p, "out")

    def mlp(p, x):
        h = linear(x, p, "up")
        return linear(rounded(_Gelu.apply(h, value, rise) if rise else value(h)), p, "down")

    x = linear(patches.to(dtype).masked_fill(~real[..., None], 0.0), given, "embed")
    x = rounded(x + given["places"])
    for layer in range(len(given["up_w"])):
        p = of_layer({name: given[name][layer] for name in KINDS if "*" in KINDS[name]})
        first, second = (partial(norm, w=p[f"{n}_w"], b=p[f"{n}_b"]) for n in ("n1", "n2"))
        x = block(x, first, second, partial(attend, p), partial(mlp, p), rounded)
    y = rounded(pooled(norm(x, given["norm_w"], given["norm_b"]), real.to(dtype)))
    asked = list(given.values())
    found = torch.autograd.grad(y, asked, v["dy"].to(dtype), allow_unused=True, materialize_grads=True)
    by_kind = dict(zip(given, found, strict=True))
    return {"y": y.detach(), **grouped(renamed(by_kind))}


def slopes(value: Callable, rise: Callable) -> dict[str, Callable]:
    """Keywords for a GELU of this value and this slope."""
    return {"value": value, "rise": rise}


def honest(v) -> dict[str, torch.Tensor]:
    """fp32 arithmetic; what goes through memory has the type of the patches."""
    dtype = v["patches"].dtype
    made = step(v, torch.float32, rounded=lambda t: t.to(dtype).float(), rise=slope)
    return {name: t.to(dtype) for name, t in made.items()}


def rough(v) -> dict[str, torch.Tensor]:
    return honest(roughened(v, ("patches", "dy", *KINDS), v["patches"].dtype))
