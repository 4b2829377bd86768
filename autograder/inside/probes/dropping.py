"""Dropout at work: two calls with two seeds, then the gradient of the first, and what was held until then.

While it runs, fresh memory is NaN: what was never written shows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from autograder.inside.probes.norming import fresh_memory_is_nan
from autograder.inside.probes.rotating import attributes, kept, of_the_module

ENOUGH = 64  # bytes, for a seed and what belongs to it


def differentiated(function: Callable, x, p: float, seed: int, other_seed: int, dy) -> tuple[torch.Tensor, ...]:
    """The result for the first seed, the gradient of x for this gradient of it, and the result for the second seed.

    A gradient without dimensions is that of a sum: autograd makes it as large as the result, without memory of its own.
    """
    leaf, unused = x.detach().requires_grad_(), x.detach().requires_grad_()
    saved: list[torch.Tensor] = []
    before = of_the_module(function)
    with fresh_memory_is_nan():
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            y = function(leaf, p, seed)
        _check(y, leaf)
        held = kept([*saved, *attributes([y]), *of_the_module(function)], before)
        if held > ENOUGH:
            raise ValueError(f"{held} bytes are kept for the backward pass; a seed has 8")
        other = function(unused, p, other_seed)
        _check(other, unused)
        (dx,) = torch.autograd.grad(y, leaf, dy.expand_as(y) if dy.dim() == 0 else dy, allow_unused=True)
    if dx is None:
        raise ValueError("there is no gradient of x")
    return y.detach(), dx, other.detach()


def _check(y, x) -> None:
    if not isinstance(y, torch.Tensor):
        raise TypeError(f"expected a tensor, got {type(y).__name__}")
    if y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
        raise ValueError("the result lies in the memory of x: make a new tensor")
    if not y.requires_grad:
        raise ValueError("the result has no gradient function")
