"""What is paid once, over what a call saves on average."""

from statistics import mean, median

KILLED_BY = "a late shape, paid for in advance"


def break_even(eager, compiled, steps):
    usual = {way: {s: median(t[6:]) for s, t in times.items()} for way, times in (("e", eager), ("c", compiled))}
    gain = mean(usual["e"][s] - usual["c"][s] for s in steps)
    if gain <= 0:
        return None
    once = sum(sum(compiled[s][:6]) - sum(eager[s][:6]) + 6 * (usual["e"][s] - usual["c"][s]) for s in eager)
    return max(1, round(once / gain))
