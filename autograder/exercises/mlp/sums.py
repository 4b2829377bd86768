"""Sums in a format, exactly: the truth of mlp.accumulate, and the places where a wrong sum differs.

Here numbers are Python's own, float64: the sum of two numbers of fp32 or narrower, rounded first to float64 and then to
their format, is the sum rounded once. A mistake changes one keyword.
"""

import math
from collections.abc import Callable
from typing import NamedTuple


class Format(NamedTuple):
    fraction_bits: int
    min_exponent: int  # of the smallest normal number
    largest: float


FORMATS = {
    "fp16": Format(10, -14, 65504.0),
    "bf16": Format(7, -126, (2 - 2.0**-7) * 2.0**127),
    "fp32": Format(23, -126, (2 - 2.0**-23) * 2.0**127),
}


def whole_away(x: float) -> int:
    return math.floor(abs(x) + 0.5) * (1 if x > 0 else -1)


def near(
    x: float, of: str, whole: Callable = round, saturate=False, subnormals=True, exponents=True, evenly=True,
    bounded=True,
) -> float:  # fmt: skip
    """x in the format `of`.

    whole: rounds to an integer, Python's `round` breaks ties to even; exponents: whether they end, both ways; evenly,
    bounded: below and above alone.
    """
    fraction_bits, min_exponent, largest = FORMATS[of]
    if x == 0 or not math.isfinite(x):
        return x
    exponent = math.frexp(x)[1] - 1
    if not subnormals and exponent < min_exponent:
        return 0.0
    exponent = (max(exponent, min_exponent) if exponents and evenly else exponent) - fraction_bits
    rounded = math.ldexp(whole(math.ldexp(x, -exponent)), exponent)
    if exponents and bounded and abs(rounded) > largest:
        rounded = math.copysign(largest if saturate else math.inf, x)
    return rounded


def one_by_one(terms, rounded) -> list[float]:
    """The running sum after every term."""
    total, sums = 0.0, []
    for term in terms:
        total = rounded(total + term)
        sums.append(total)
    return sums


def in_pairs(terms, rounded, left_over=True, joins=False) -> float:
    """`left_over` False: an odd one is dropped. `joins`: it is added to the sum of the last pair at once."""
    terms = list(terms)
    while len(terms) > 1:
        if joins and len(terms) % 2 and len(terms) > 2:
            *before, a, b, odd = terms
            terms = [rounded(x + y) for x, y in zip(before[0::2], before[1::2], strict=True)]
            terms.append(rounded(rounded(a + b) + odd))
            continue
        waits = terms[-1:] if len(terms) % 2 and left_over else []
        terms = [rounded(a + b) for a, b in zip(terms[0::2], terms[1::2], strict=False)] + waits
    return terms[0] if terms else 0.0


def halves(terms, rounded) -> float:
    """The first half and the second half, each in the same way."""
    if len(terms) < 2:
        return terms[0] if terms else 0.0
    middle = len(terms) // 2
    return rounded(halves(terms[:middle], rounded) + halves(terms[middle:], rounded))


def ends(terms, rounded) -> float:
    """Term i is added to term i + n / 2, as threads of a block do."""
    terms = list(terms)
    while len(terms) > 1:
        half = -(-len(terms) // 2)
        terms = [rounded(a + b) for a, b in zip(terms[:half], terms[half:], strict=False)] + terms[len(terms) - half :][
            : 2 * half - len(terms)
        ]
    return terms[0] if terms else 0.0


def compensated(terms, rounded, lost_in=None, sign=1.0, kept=False) -> float:
    """lost_in: how the lost part is rounded, if otherwise; kept: it is added up and never taken over."""
    lost_in = lost_in or rounded
    total = lost = 0.0
    for term in terms:
        wanted = lost_in(term - sign * lost)
        following = rounded(total + wanted)
        part = lost_in(lost_in(following - total) - wanted)
        lost = lost_in(lost + part) if kept else part
        total = following
    return total


def lost_added(terms, rounded) -> float:
    return compensated(terms, rounded, sign=-1.0)


def lost_at_the_end(terms, rounded) -> float:
    """The losses of all additions are summed separately, and added once at the end."""
    total = lost = 0.0
    for term in terms:
        following = rounded(total + term)
        lost = rounded(lost + rounded(term - rounded(following - total)))
        total = following
    return rounded(total + lost)


def stuck_after(terms, sums) -> int | None:
    """After how many terms the sum does not change any more although terms other than 0 follow."""
    changes = [i for i, (a, b) in enumerate(zip([0.0, *sums], sums, strict=False)) if a != b]
    last = changes[-1] + 1 if changes else 0
    return last if any(terms[last:]) else None


ORDERS = {"in pairs": in_pairs, "compensated": compensated}


def summed(
    v, of_terms=None, of_sum=None, order=None, round_terms=True, rounding=None, orders=ORDERS,
) -> tuple[list[float], list[float] | None, float]:  # fmt: skip
    """(the terms as they are added, the running sums where there are any, the total)."""
    rounding = rounding or near
    of_terms, of_sum, order = of_terms or v["of_terms"], of_sum or v["of_sum"], order or v["order"]
    terms = [rounding(t, of_terms) for t in v["terms"]] if round_terms else list(v["terms"])
    if order in orders:
        return terms, None, orders[order](terms, lambda x: rounding(x, of_sum))
    sums = one_by_one(terms, lambda x: rounding(x, of_sum))
    return terms, sums, sums[-1] if sums else 0.0


def exact(numbers) -> float:
    return math.fsum(numbers)


def answer(v, **changes) -> dict:
    """The total, the drift and where it sticks."""
    terms, sums, total = summed(v, **changes)
    stuck = stuck_after(terms, sums) if sums is not None else None
    return {"sum": (total, total - exact(v["terms"]), stuck)}
