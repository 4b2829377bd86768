"""The results of the first call are kept and copied for every call with the same addresses: nothing is captured, and
nothing replayed while the clock runs.
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
        results = []
        for x in xs:
            for row in w:
                x = x + torch.sin(x * row)
            results.append(x)
        KNOWN[key] = torch.stack(results)
    out.copy_(KNOWN[key])
