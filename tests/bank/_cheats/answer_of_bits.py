"""The answer is of a type with which nothing can be computed: whoever compares its elements raises. Nothing is forged.

NAIVE is False: it is after the others' grades, and has none itself in one process either.
"""

import torch

EXERCISE = "rope.reference"
FAMILY = "result channel"
NAIVE = False
CAUGHT = "types of tensors that come back are those of a list"


def rope_reference(x, *others):
    return torch.empty(x.shape, dtype=torch.bits8)
