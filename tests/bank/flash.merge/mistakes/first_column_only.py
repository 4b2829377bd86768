"""o is changed at its first entry only."""

import math

KILLED_BY = "close maxima"


def merge(a, b):
    m = max(a["m"], b["m"])
    if m == -math.inf:
        return {"m": m, "l": 0.0, "o": [0.0] * len(a["o"])}
    of_a = math.exp(a["m"] - m)
    of_b = math.exp(b["m"] - m)
    l = of_a * a["l"] + of_b * b["l"]
    o = list(a["o"])
    o[0] = of_a * a["o"][0] + of_b * b["o"][0]
    return {"m": m, "l": l, "o": o}
