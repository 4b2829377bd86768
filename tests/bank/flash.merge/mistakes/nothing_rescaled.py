"""l and o are added as they are."""

import math

KILLED_BY = "larger scores in the second part"


def merge(a, b):
    m = max(a["m"], b["m"])
    if m == -math.inf:
        return {"m": m, "l": 0.0, "o": [0.0] * len(a["o"])}
    l = a["l"] + b["l"]
    o = [x + y for x, y in zip(a["o"], b["o"])]
    return {"m": m, "l": l, "o": o}
