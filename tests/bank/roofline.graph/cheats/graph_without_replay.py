"""Captured, kept and never replayed while timed: the results of the first call are copied for every call with the same
addresses.
"""

import torch

FAMILY = "stale graph"
NAIVE = True
CAUGHT = "fresh memory in every round"
TIERS = ("gpu",)
SPEED = True

KNOWN = {}


def run_many(xs, w, out):
    key = (xs.data_ptr(), w.data_ptr(), xs.shape)
    if key not in KNOWN:
        x = xs
        for row in w:
            x = x + torch.sin(x * row)
        KNOWN[key] = x
    out.copy_(KNOWN[key])
