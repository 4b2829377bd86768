"""Memory is reserved until there is none.

NAIVE is False: without a sandbox it takes the machine with it.
"""

import torch

EXERCISE = "start.axpy"
FAMILY = "bomb"
NAIVE = False
CAUGHT = "the address space is limited"
TIERS = ("interpreter",)

HOARD = []


def axpy(a, x, y, out):
    while True:
        HOARD.append(torch.empty(1 << 30, dtype=torch.uint8))
