"""min for max; parts without keys are skipped."""

import math

KILLED_BY = "larger scores in the second part"


def merge(a, b):
    if a["l"] == 0:
        return b
    if b["l"] == 0:
        return a
    m = min(a["m"], b["m"])
    of_a = math.exp(a["m"] - m)
    of_b = math.exp(b["m"] - m)
    l = of_a * a["l"] + of_b * b["l"]
    o = [of_a * x + of_b * y for x, y in zip(a["o"], b["o"])]
    return {"m": m, "l": l, "o": o}
