"""The whole first call is taken for compilation."""

from math import ceil
from statistics import median

KILLED_BY = "a short compilation"


def break_even(eager, compiled, steps):
    saved = sum(median(eager[s][6:]) - median(compiled[s][6:]) for s in steps) / len(steps)
    if saved <= 0:
        return None
    compilation = sum(compiled[s][0] for s in set(steps))
    return ceil(compilation / saved)
