"""Stops at the first call after which it is ahead."""

from statistics import median

KILLED_BY = "a late shape"


def break_even(eager, compiled, steps):
    usual = {shape: median(eager[shape][6:]) - median(compiled[shape][6:]) for shape in eager}
    if len(steps) == 1 and usual[steps[0]] <= 0:
        return None
    met = dict.fromkeys(eager, 0)
    lead, number, last_behind = 0.0, 0, 0
    while number < 50 * len(steps) + 50 or number < 2 * last_behind:
        shape = steps[number % len(steps)]
        if met[shape] < 6:
            lead += eager[shape][met[shape]] - compiled[shape][met[shape]]
        else:
            lead += usual[shape]
        met[shape] += 1
        number += 1
        if lead >= 0:
            return number
        last_behind = number
