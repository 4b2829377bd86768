"""The part with the smaller maximum is brought to the other one; a part with no key is skipped."""

import math


def merge(a, b):
    if a["m"] < b["m"]:
        a, b = b, a
    if b["l"] == 0:
        return {"m": a["m"], "l": a["l"], "o": list(a["o"])}
    factor = math.exp(b["m"] - a["m"])
    o = [x + factor * y for x, y in zip(a["o"], b["o"])]
    return {"m": a["m"], "l": a["l"] + factor * b["l"], "o": o}
