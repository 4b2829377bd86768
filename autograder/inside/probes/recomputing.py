"""A step that is to keep its inputs only: its result, its gradients, and the bytes held between and within passes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch

from autograder.inside.probes.norming import fresh_memory_is_nan
from autograder.inside.probes.passing import InPassing
from autograder.inside.probes.rotating import attributes, kept, of_the_module

NAMES = ("x", "w1", "b1", "w2", "b2")
LARGE = 64, 128  # rows and hidden columns from which on memory in passing is looked at: below, h is no large matrix


def differentiated(function: Callable, x, w1, b1, w2, b2, dy) -> tuple[torch.Tensor, ...]:
    """y and the gradients of all five for this gradient of it; fresh memory is NaN meanwhile.

    A gradient without dimensions is that of a sum: autograd makes it as large as the result, without memory of its own.
    An error when, beyond the five, more bytes are kept between the passes than an eighth of the pre-activation has, or
    when a pass holds more than two matrices as large as that at one time.
    """
    leaves = [t.detach().requires_grad_() for t in (x, w1, b1, w2, b2)]
    saved: list[torch.Tensor] = []
    before = of_the_module(function)
    hidden = len(x) * w1.nbytes // w1.shape[1]
    # beside the two: the results, a copy of dy, and half a matrix for what sums are made of
    beside = 3 * len(x) * x.shape[1] * x.element_size() + sum(t.nbytes for t in (w1, b1, w2, b2)) + hidden // 2
    looked_at = len(x) >= LARGE[0] and len(w1) >= LARGE[1]
    forward, backward = (InPassing(2 * hidden + beside) if looked_at else nullcontext() for _ in range(2))
    with fresh_memory_is_nan():
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t), forward:
            y = function(*leaves)
        if not isinstance(y, torch.Tensor):
            raise TypeError(f"expected a tensor, got {type(y).__name__}")
        if not y.requires_grad:
            raise ValueError("the result has no gradient function")
        held = kept([*saved, *attributes([y]), *of_the_module(function)], [*leaves, *before])
        if 8 * held > hidden:
            raise ValueError(
                f"{held} bytes beside the arguments are kept for backward; the pre-activation has {hidden}"
            )
        with backward:
            made = torch.autograd.grad(y, leaves, dy.expand_as(y) if dy.dim() == 0 else dy, allow_unused=True)
    for name, gradient in zip(NAMES, made, strict=True):
        if gradient is None:
            raise ValueError(f"there is no gradient of {name}")
    for words, passed in (("forward", forward), ("backward", backward)):
        if looked_at and passed.most > passed.granted:
            raise ValueError(
                f"at one moment of the {words} pass {passed.most} bytes are alive that it made; two matrices of the "
                f"size of h have {2 * hidden}, and {beside} more are granted for results and small sums"
            )
    return y.detach(), *made
