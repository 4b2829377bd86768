"""The library does the work; no kernel of the student's exists at all.

NAIVE is False: `check` counts launches as well, and there is none.
"""

import torch

FAMILY = "vendor call"
NAIVE = False
CAUGHT = "no Triton kernel was launched"


def softmax(x, out):
    out.copy_(torch.nan_to_num(torch.softmax(x.float(), dim=1)))
