"""The factor of each part goes to the other."""

import math

KILLED_BY = "larger scores in the second part"


def merge(a, b):
    m = max(a["m"], b["m"])
    if m == -math.inf:
        return {"m": m, "l": 0.0, "o": [0.0] * len(a["o"])}
    of_b = math.exp(a["m"] - m)
    of_a = math.exp(b["m"] - m)
    l = of_a * a["l"] + of_b * b["l"]
    o = [of_a * x + of_b * y for x, y in zip(a["o"], b["o"])]
    return {"m": m, "l": l, "o": o}
