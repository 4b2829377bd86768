"""A step that is to keep its inputs and nothing else: its result, its gradients, and the bytes held between."""

from __future__ import annotations

from collections.abc import Callable

import torch

from autograder.inside.probes.norming import fresh_memory_is_nan
from autograder.inside.probes.rotating import attributes, kept, of_the_module

NAMES = ("x", "w1", "b1", "w2", "b2")


def differentiated(function: Callable, x, w1, b1, w2, b2, dy) -> tuple[torch.Tensor, ...]:
    """y and the gradients of all five for this gradient of it; fresh memory is NaN meanwhile.

    A gradient without dimensions is that of a sum: autograd makes it as large as the result, without memory of its own.
    An error when, beyond the five, more bytes are kept than an eighth of the pre-activation has.
    """
    leaves = [t.detach().requires_grad_() for t in (x, w1, b1, w2, b2)]
    saved: list[torch.Tensor] = []
    before = of_the_module(function)
    with fresh_memory_is_nan():
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            y = function(*leaves)
        if not isinstance(y, torch.Tensor):
            raise TypeError(f"expected a tensor, got {type(y).__name__}")
        if not y.requires_grad:
            raise ValueError("the result has no gradient function")
        held = kept([*saved, *attributes([y]), *of_the_module(function)], [*leaves, *before])
        hidden = len(x) * w1.nbytes // w1.shape[1]
        if 8 * held > hidden:
            raise ValueError(
                f"{held} bytes beside the arguments are kept for backward; the pre-activation has {hidden}"
            )
        made = torch.autograd.grad(y, leaves, dy.expand_as(y) if dy.dim() == 0 else dy, allow_unused=True)
    for name, gradient in zip(NAMES, made, strict=True):
        if gradient is None:
            raise ValueError(f"there is no gradient of {name}")
    return y.detach(), *made
