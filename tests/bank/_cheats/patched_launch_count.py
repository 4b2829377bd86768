"""The list that counts launches is found and gets one more entry at every call; no kernel exists."""

import torch

from course_lib.interpreter import launch

EXERCISE = "start.axpy"
FAMILY = "patched modules"
NAIVE = True
CAUGHT = "the watched run saw the library's operator and no kernel"
TIERS = ("interpreter",)
HELD = True


def axpy(a, x, y, out):
    for seen in launch.listeners:
        seen.append(("_axpy_kernel", (1, 1, 1)))
    torch.add(y, x, alpha=a, out=out)
