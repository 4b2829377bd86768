"""Inside the sandbox: how many numbers the operators that an exercise allows work on, and how many others move.

Every function can be put together from products of single numbers, which are the diagonal of a column times a row, and
from the gradient of a norm, which multiplies number by number too. That takes many times the numbers that the products
and norms of a model are given and make.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch.utils._pytree import tree_leaves

from autograder.inside.calling import Found

KINDS = {
    **dict.fromkeys("mm addmm bmm baddbmm mv addmv linear matmul".split(), "products"),
    **dict.fromkeys("layer_norm native_layer_norm native_layer_norm_backward".split(), "norms"),
}
FACTORS = "mat1 batch1 mat input self".split()  # what products call their first matrix, in the order of asking
OTHERS = "sums"  # and all else that is allowed
LEAST = 1024  # what a call counts for at least, so that many small ones are no way out


class Numbers:
    """Adds up what the operators of one call are given and make. most: of each kind."""

    def __init__(self, most: Mapping[str, int]):
        self.most, self.left = most, dict(most)

    def count(self, name: str, values: Iterable) -> None:
        """name: of an operator that computes, "mm"; values: its arguments and its results."""
        kind = KINDS.get(name, OTHERS)
        if kind not in self.left:
            return
        self.left[kind] -= max(LEAST, sum(one.numel() for one in values if isinstance(one, torch.Tensor)))
        if self.left[kind] < 0:
            raise Found(
                f"torch's {kind} are given and make more than {self.most[kind]} numbers, which is more than is needed: "
                "the rest is for kernels"
            )


def multiplications(func, args: Sequence, kwargs: Mapping, made: object) -> int:
    """How many an operator of torch makes if it multiplies matrices."""
    if KINDS.get(func._schema.name.removeprefix("aten::")) != "products" or not isinstance(made, torch.Tensor):
        return 0
    given = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | dict(kwargs)
    first = next(given[name] for name in FACTORS if name in given)
    return made.numel() * (first.shape[-1] if first.dim() else 1)


def moved(func, args: Sequence, kwargs: Mapping, made: object) -> tuple[int, bool]:
    """How many tensors an operator that moves numbers is given, one at least, and whether they get another type."""
    given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    kinds = {one.dtype for one in given}
    if func._schema.name == "aten::_to_copy" and isinstance(made, torch.Tensor):
        kinds.add(made.dtype)
    return max(1, len(given)), len(kinds) > 1
