"""Divides by the time of a compiled call."""

from math import ceil
from statistics import median

KILLED_BY = "a short compilation"


def break_even(eager, compiled, steps):
    saved = sum(median(eager[s][6:]) - median(compiled[s][6:]) for s in steps)
    if saved <= 0:
        return None
    extra = sum(sum(compiled[s][:6]) - 6 * median(compiled[s][6:]) for s in set(steps))
    call = sum(median(compiled[s][6:]) for s in steps) / len(steps)
    return ceil(extra / call)
