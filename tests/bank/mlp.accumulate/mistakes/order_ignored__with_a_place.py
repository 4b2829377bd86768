"""One by one, whatever is asked, and where that sticks."""

import math

KILLED_BY = "in pairs, an odd number"

BITS = {"fp16": (10, -14, 65504.0), "bf16": (7, -126, 3.3895313892515355e38), "fp32": (23, -126, 3.4028234663852886e38)}


def near(x, form):
    bits, least, largest = BITS[form]
    if x == 0 or not math.isfinite(x):
        return x
    exponent = math.frexp(x)[1] - 1
    step = 2.0 ** (max(exponent, least) - bits)
    rounded = round(x / step) * step
    return math.copysign(math.inf, x) if abs(rounded) > largest else rounded


def in_pairs(terms, form):
    while len(terms) > 1:
        made = []
        for i in range(0, len(terms), 2):
            pair = terms[i : i + 2]
            made.append(near(pair[0] + pair[1], form) if len(pair) == 2 else pair[0])
        terms = made
    return terms[0] if terms else 0.0


def compensated(terms, form):
    total = lost = 0.0
    for term in terms:
        wanted = near(term - lost, form)
        following = near(total + wanted, form)
        lost = near(near(following - total, form) - wanted, form)
        total = following
    return total


def accumulate(terms, of_terms, of_sum, order):
    true = math.fsum(terms)
    data = [near(t, of_terms) for t in terms]
    stuck = None
    if True:
        total, last = 0.0, 0
        for i, term in enumerate(data):
            before, total = total, near(total + term, of_sum)
            if total != before:
                last = i + 1
        if any(data[last:]):
            stuck = last
    return total, total - true, stuck
