"""The honest computation with every sum in another order: what a right submission may differ by, in seconds.

A limit comes from the honest computation in one order. Of a row that is 0 but for rounding that order tells nothing,
and the next right submission may be refused. So each product and each sum of it is made anew with its terms shuffled.
"""

from __future__ import annotations

from functools import partial

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autograder.bank.formulas import Answer
from autograder.exercise import Exercise, Values

RIGHT = "the honest answer in another order"

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.bmm.default)
SUMS_OF_PRODUCTS = (aten.addmm.default, aten.baddbmm.default)
SUMS_ALONG = (aten.sum.dim_IntList, aten.mean.dim)
SUMS_OF_ALL = (aten.sum.default, aten.mean.default)


class Shuffled(TorchDispatchMode):
    """Products and sums, also those of autograd, add their terms up in another order."""

    def __init__(self, seed: int):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op in PRODUCTS:
            args = self._terms(*args)
        elif op in SUMS_OF_PRODUCTS:
            args = (args[0], *self._terms(*args[1:3]))
        elif op in SUMS_ALONG:
            x, dims, *rest = args
            for dim in range(x.dim()) if dims is None else dims:
                x = x.index_select(dim, self._order(x.shape[dim], x))
            args = (x, dims, *rest)
        elif op in SUMS_OF_ALL:
            args = (args[0].flatten()[self._order(args[0].numel(), args[0])],)
        return op(*args, **(kwargs or {}))

    def _terms(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        order = self._order(a.shape[-1], a)
        return a[..., order], b[..., order, :]

    def _order(self, terms: int, like: torch.Tensor) -> torch.Tensor:
        return torch.randperm(terms, generator=self.generator).to(like.device)


def honest(exercise: Exercise, seed: int) -> list[tuple[str, Answer]]:
    """The honest computation in another order, with its name, where the exercise has one."""
    return [(RIGHT, partial(_shuffled, exercise, seed))] if exercise.precision else []


def _shuffled(exercise: Exercise, seed: int, v: Values) -> Values:
    with Shuffled(seed):
        return exercise.precision.good(v)
