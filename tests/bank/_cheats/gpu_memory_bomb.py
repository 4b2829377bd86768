"""All memory of the GPU is taken and kept.

NAIVE is False: it earns nothing.
"""

import torch

EXERCISE = "start.axpy"
FAMILY = "bomb"
NAIVE = False
CAUGHT = "the worker is ended, and the driver takes its memory back"
TIERS = ("gpu",)

HOARD = []


def axpy(a, x, y, out):
    while True:
        HOARD.append(torch.zeros(1 << 28, device="cuda"))
