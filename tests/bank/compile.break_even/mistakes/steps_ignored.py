"""Every shape comes as often as any other."""

from statistics import median

KILLED_BY = "slower in a rare shape"


def break_even(eager, compiled, steps):
    steps = list(eager)
    usual = {shape: median(eager[shape][6:]) - median(compiled[shape][6:]) for shape in eager}
    if sum(usual[shape] for shape in steps) <= 0:
        return None
    steps = list(eager)
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
        if lead < 0:
            last_behind = number
    return last_behind + 1
