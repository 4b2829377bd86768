"""Eager mode has its usual time from the first call on."""

from statistics import median

KILLED_BY = "a slow first call in eager mode too"


def break_even(eager, compiled, steps):
    usual = {shape: median(eager[shape][6:]) - median(compiled[shape][6:]) for shape in eager}
    if sum(usual[shape] for shape in steps) <= 0:
        return None
    met = dict.fromkeys(eager, 0)
    lead, number, last_behind = 0.0, 0, 0
    while number < 50 * len(steps) + 50 or number < 2 * last_behind:
        shape = steps[number % len(steps)]
        if met[shape] < 6:
            lead += median(eager[shape][6:]) - compiled[shape][met[shape]]
        else:
            lead += usual[shape]
        met[shape] += 1
        number += 1
        if lead < 0:
            last_behind = number
    return last_behind + 1
