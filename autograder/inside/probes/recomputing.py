"""A step that is to keep its inputs only: its result, its gradients, and the bytes held between and within passes."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from autograder.inside.probes.norming import fresh_memory_is_nan
from autograder.inside.probes.rotating import attributes, kept, of_the_module
from course_lib.interpreter.launch import is_running

NAMES = ("x", "w1", "b1", "w2", "b2")
LARGE = 64, 128  # rows and hidden columns from which on memory in passing is looked at: below, h is no large matrix


class _InPassing(TorchDispatchMode):
    """Notes the most bytes that are alive at one time of those that operators make inside."""

    def __init__(self):
        super().__init__()
        self.most, self.alive = 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {t.untyped_storage()._cdata for t in (*args, *(kwargs or {}).values()) if isinstance(t, torch.Tensor)}
        made = func(*args, **(kwargs or {}))
        if is_running():
            return made
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor) and (at := one.untyped_storage())._cdata not in given:
                self.alive[at._cdata] = StorageWeakRef(at), at.nbytes()
        if self._now() > self.most:
            gc.collect()  # a cycle of the interpreter may still hold a matrix that the pass has let go
            self.most = max(self.most, self._now())
        return made

    def _now(self) -> int:
        self.alive = {key: (at, size) for key, (at, size) in self.alive.items() if not at.expired()}
        return sum(size for _, size in self.alive.values())


def differentiated(function: Callable, x, w1, b1, w2, b2, dy) -> tuple[torch.Tensor, ...]:
    """y and the gradients of all five for this gradient of it; fresh memory is NaN meanwhile.

    A gradient without dimensions is that of a sum: autograd makes it as large as the result, without memory of its own.
    An error when, beyond the five, more bytes are kept between the passes than an eighth of the pre-activation has, or
    when a pass holds more than two matrices as large as that at one time.
    """
    leaves = [t.detach().requires_grad_() for t in (x, w1, b1, w2, b2)]
    saved: list[torch.Tensor] = []
    before = of_the_module(function)
    forward, backward = _InPassing(), _InPassing()
    with fresh_memory_is_nan():
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t), forward:
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
        with backward:
            made = torch.autograd.grad(y, leaves, dy.expand_as(y) if dy.dim() == 0 else dy, allow_unused=True)
    for name, gradient in zip(NAMES, made, strict=True):
        if gradient is None:
            raise ValueError(f"there is no gradient of {name}")
    if len(x) >= LARGE[0] and len(w1) >= LARGE[1]:
        # beside the two: the results, a copy of dy, and half a matrix for what sums are made of
        beside = 3 * len(x) * x.shape[1] * x.element_size() + sum(t.nbytes for t in (w1, b1, w2, b2)) + hidden // 2
        for words, passed in (("forward", forward), ("backward", backward)):
            if passed.most > 2 * hidden + beside:
                raise ValueError(
                    f"at one moment of the {words} pass {passed.most} bytes are alive that it made; two matrices of "
                    f"the size of h have {2 * hidden}, and {beside} more are granted for results and small sums"
                )
    return y.detach(), *made
