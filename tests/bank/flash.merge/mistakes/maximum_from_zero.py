"""The running maximum begins at 0."""

import math

KILLED_BY = "scores below zero"


def merge(a, b):
    m = max(0.0, a["m"], b["m"])
    if a["l"] == b["l"] == 0.0:
        return {"m": -math.inf, "l": 0.0, "o": [0.0] * len(a["o"])}
    of_a = math.exp(a["m"] - m)
    of_b = math.exp(b["m"] - m)
    l = of_a * a["l"] + of_b * b["l"]
    o = [of_a * x + of_b * y for x, y in zip(a["o"], b["o"])]
    return {"m": m, "l": l, "o": o}
