"""A large negative number stands for "no score yet", and is returned where there is none."""

import math

KILLED_BY = "no key in either"


def merge(a, b):
    m = max(a["m"], b["m"], -1e9)
    of_a, of_b = math.exp(a["m"] - m), math.exp(b["m"] - m)
    o = [of_a * x + of_b * y for x, y in zip(a["o"], b["o"])]
    return {"m": m, "l": of_a * a["l"] + of_b * b["l"], "o": o}
