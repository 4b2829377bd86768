"""The newer part's maximum is taken, larger or not."""

import math

KILLED_BY = "larger scores in the first part"


def merge(a, b):
    if b["l"] == 0:
        return a
    m = b["m"]
    of_a = math.exp(a["m"] - m)
    of_b = math.exp(b["m"] - m)
    l = of_a * a["l"] + of_b * b["l"]
    o = [of_a * x + of_b * y for x, y in zip(a["o"], b["o"])]
    return {"m": m, "l": l, "o": o}
