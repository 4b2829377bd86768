"""A steady time and an extra for each shape, paid when it first comes."""

from statistics import median


def split(seconds):
    usual = sorted(seconds[6:])[2]
    return usual, [max(0.0, t - usual) for t in seconds[:6]]


def break_even(eager, compiled, steps):
    e = {s: split(t) for s, t in eager.items()}
    c = {s: split(t) for s, t in compiled.items()}
    if sum(e[s][0] for s in steps) < sum(c[s][0] for s in steps):
        return None
    extra_e = {s: iter(x) for s, (_, x) in e.items()}
    extra_c = {s: iter(x) for s, (_, x) in c.items()}
    a = b = 0.0
    n = answer = 0
    while n < answer + 7 * len(steps):
        s = steps[n % len(steps)]
        n += 1
        a += e[s][0] + next(extra_e[s], 0.0)
        b += c[s][0] + next(extra_c[s], 0.0)
        if b > a:
            answer = n
    return answer + 1
