"""`+` of two lists."""

import math

KILLED_BY = "one key each"


def merge(a, b):
    m = max(a["m"], b["m"])
    if m == -math.inf:
        return {"m": m, "l": 0.0, "o": [0.0] * len(a["o"])}
    of_a = math.exp(a["m"] - m)
    of_b = math.exp(b["m"] - m)
    l = of_a * a["l"] + of_b * b["l"]
    o = [of_a * x for x in a["o"]] + [of_b * y for y in b["o"]]
    return {"m": m, "l": l, "o": o}
