"""A residual add with LayerNorm at work, as a step that autograd differentiates, in place where that is asked for.

While it runs, fresh memory is NaN: what is summed up without having been written shows.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator

import torch

NAMES = ("x", "residual", "weight", "bias")


def differentiated(function: Callable, x, residual, weight, bias, eps: float, in_place: bool, dy, ds):
    """y and s, and the gradients of x, residual, weight and bias for these gradients of y and s.

    A gradient without dimensions is that of a sum: autograd makes it as large as the result, without memory of its own.
    None for s: nobody uses it further. `in_place`: the function gets copies of x and residual, to write over, and has
    to tell autograd that it did: else a gradient that needs the old values is wrong in silence.
    """
    leaves = [t.detach().requires_grad_() for t in (x, residual, weight, bias)]
    with fresh_memory_is_nan():
        given = [_copied(t) for t in leaves[:2]] if in_place else leaves[:2]
        places, versions = [t.untyped_storage().data_ptr() for t in given], [t._version for t in given]
        results = function(*given, *leaves[2:], eps, in_place)
        _check(results, places, in_place)
        for name, t, version in zip(NAMES, given, versions):
            if in_place and t._version == version:
                raise ValueError(f"{name} was written over, and autograd was not told")
        wanted = [(r, g.expand_as(r) if g.dim() == 0 else g) for r, g in zip(results, (dy, ds)) if g is not None]
        used, gradients = zip(*wanted, strict=True)
        made = torch.autograd.grad(used, leaves, gradients, allow_unused=True)
    for name, gradient in zip(NAMES, made, strict=True):
        if gradient is None:
            raise ValueError(f"there is no gradient of {name}")
    return *(r.detach() for r in results), *made


class _Copy(torch.autograd.Function):
    """A copy with the strides of the original, gaps included, and its gradient."""

    @staticmethod
    def forward(ctx, x):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def _copied(x: torch.Tensor) -> torch.Tensor:
    return _Copy.apply(x)


def _check(results, places: list[int], in_place: bool) -> None:
    if not isinstance(results, tuple | list) or len(results) != 2:
        raise TypeError(f"expected two tensors, (y, s), got {type(results).__name__}")
    for name, result, place, of in zip("ys", results, places, NAMES, strict=False):
        if not isinstance(result, torch.Tensor):
            raise TypeError(f"expected tensors, got {type(result).__name__} for {name}")
        there = result.untyped_storage().data_ptr()
        if in_place and there != place:
            raise ValueError(f"in place was asked for, and {name} does not lie in the memory of {of}")
        if not in_place and there in places:
            raise ValueError(f"{name} lies in the memory of an input, and in place was not asked for")
        if not result.requires_grad:
            raise ValueError(f"{name} has no gradient function")


@contextlib.contextmanager
def fresh_memory_is_nan() -> Iterator[None]:
    """torch.empty gives NaN, as its deterministic mode has it; nothing else of that mode is an error or a warning."""
    mode, fill = torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Deterministic behavior was enabled|.* does not have a deterministic")
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.utils.deterministic.fill_uninitialized_memory = fill
