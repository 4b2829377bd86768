"""A dispatch mode at work: what it counted while a small program ran, forward and, if asked for, backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F

AROUND = {"nothing": nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


def program(source: str) -> Callable:
    """The function `f(x, w, b)` of a few lines of Python."""
    names: dict[str, Any] = {"torch": torch, "F": F}
    exec(compile(source, "<program>", "exec"), names)
    return names["f"]


def tensors(sizes: Mapping[str, Any]) -> list[torch.Tensor]:
    """x (batch..., n), w (n, n) and b (n); they need gradients where the program goes backward too."""
    n, dtype = sizes["n"], getattr(torch, sizes["dtype"])
    shapes = ((*sizes["batch"], n), (n, n), (n,))
    generator = torch.Generator().manual_seed(sizes["seed"])
    made = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    return [t.requires_grad_(sizes["backward"]) for t in made]


def metered(make: Callable, source: str, sizes: Mapping[str, Any]) -> tuple[dict[str, int], float]:
    """What the meter that `make()` returns has counted, and the sum of the program's result."""
    f, given, meter = program(source), tensors(sizes), make()
    with AROUND[sizes.get("around", "nothing")](), meter:
        out = f(*given)
        if sizes["backward"]:
            out.backward(torch.ones(out.shape, dtype=out.dtype))
    return {"flops": meter.flops, "bytes": meter.bytes}, float(out.detach().double().sum())
