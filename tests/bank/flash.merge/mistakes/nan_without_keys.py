"""Nothing is said about two parts without keys."""

import math

KILLED_BY = "no key in either"


def merge(a, b):
    m = max(a["m"], b["m"])
    of_a = math.exp(a["m"] - m)
    of_b = math.exp(b["m"] - m)
    l = of_a * a["l"] + of_b * b["l"]
    o = [of_a * x + of_b * y for x, y in zip(a["o"], b["o"])]
    return {"m": m, "l": l, "o": o}
