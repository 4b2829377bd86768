"""mlp.accumulate: a sum as an accumulator of some format makes it, bit by bit; how far it drifts, where it sticks.

    accumulate(terms, of_terms, of_sum, order) -> (total, drift, stuck)

terms is a list of numbers. Each is first rounded to the format `of_terms`, as data in memory is; then they are added,
and every addition is rounded to the format `of_sum`. Formats are "fp16", "bf16" and "fp32"; rounding is to nearest,
ties to even, from the sum as float64 has it; subnormal numbers are kept, and what is too large becomes infinite. With R
for this rounding and t for a rounded term, `order` is

    "one by one"    total = R(total + t), from 0 on
    "in pairs"      neighbours are added, then neighbours of their sums, and so on; an odd one at the end waits
    "compensated"   from total = lost = 0, for each term
                        wanted = R(t - lost)
                        following = R(total + wanted)
                        lost = R(R(following - total) - wanted)
                        total = following

total is the sum so made, 0 where there are no terms, and drift is total less the exact sum of the terms as they were
given, before they were rounded. stuck is for "one by one": after how many terms total does not change any more,
although terms (as rounded) other than 0 follow; None where there is no such place, and None in the other orders.

Right means: total and stuck exactly, drift to 1e-12 of the exact sum, or of 1 where that is more. numpy and torch may
be used.
"""

import math
from functools import partial

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.mlp import sums
from autograder.exercises.mlp.accumulate_mistakes import MISTAKES
from autograder.exercises.mlp.sums import answer, exact, near
from autograder.exercises.telling import telling

ONE, PAIRS, KAHAN = ORDERS = ("one by one", "in pairs", "compensated")
RIVALS = {  # the right way first
    PAIRS: (sums.in_pairs, partial(sums.in_pairs, joins=True), sums.halves, sums.ends),
    KAHAN: (sums.compensated, partial(sums.compensated, lost_in=float), sums.lost_at_the_end, sums.lost_added),
}


def _call(terms: list[float], of_terms: str, of_sum: str | None = None, order: str = ONE) -> Call:
    of_sum = of_sum or of_terms
    what = f"{len(terms)} term{'s' * (len(terms) != 1)} in {of_terms}, sum in {of_sum}, {order}"
    return Call({"terms": terms, "of_terms": of_terms, "of_sum": of_sum, "order": order}, what)


def _of_fp32(x: float) -> float:
    """Drawn terms are numbers of fp32: who rounds by way of fp32 rounds once, but for the case that is about it."""
    return near(x, "fp32")


def _same(d: Draw, low: float, high: float, least: int, most: int) -> list[float]:
    """One number again and again, none that a format holds."""
    return [_of_fp32(d.number(low, high))] * d.integer(least, most)


def _any(d: Draw, count: int, low=-3.0, high=3.0) -> list[float]:
    return [_of_fp32(d.number(low, high)) for _ in range(count)]


def _telling(d: Draw, of: str, order: str) -> Call:
    """Sizes from 2^-6 to 2^6, in pairs that nearly cancel; drawn until other ways of adding give other totals.

    The count is drawn anew too: 127 terms, cut in halves again and again, are the pairs of neighbours.
    """
    rounded = partial(near, of=of)
    while True:
        count = d.odd(70, 130) if order == PAIRS else d.integer(70, 130)
        large = [d.choice([-1, 1]) * 2.0 ** d.number(-6, 6) for _ in range(count // 2)]
        terms = [_of_fp32(t) for x in large for t in (x, d.number(-0.05, 0.05) - x)]
        terms += _any(d, count % 2)
        data = [rounded(t) for t in terms]
        totals = [way(data, rounded) for way in RIVALS[order]]
        if totals[0] not in totals[1:]:
            return _call(terms, of, order=order)


def _just_off_a_tie(d: Draw) -> Call:
    """Terms that fp32 rounds onto a tie of fp16, whose even side is not the nearer one."""
    terms = []
    for _ in range(d.integer(9, 20)):
        below = d.integer(1024, 2046)  # of the two numbers of fp16 beside it, in units of 2^-10
        beside = 2.0**-29 * (-1 if below % 2 else 1)
        terms.append(d.choice([-1, 1]) * 2.0 ** d.integer(-3, 3) * (below + 0.5 + beside) / 1024)
    return _call(terms, "fp16", "fp32")


def _coarser_sum(d: Draw) -> Call:
    """Drawn until it matters whether a term is rounded to the sum's format before it is added."""
    rounded = partial(near, of="bf16")
    while True:
        terms = _any(d, d.integer(300, 400))
        data = [near(t, "fp16") for t in terms]
        totals = [sums.one_by_one(ts, rounded)[-1] for ts in (data, map(rounded, data))]
        if totals[0] != totals[1]:
            return _call(terms, "fp16", "bf16")


def _subnormal(d: Draw) -> Call:
    """Drawn until it matters that below the smallest normal number the spacing stays."""
    while True:
        terms = _any(d, d.integer(30, 50), 1e-7, 4e-6)
        ways = [partial(near, of="fp16", evenly=evenly) for evenly in (True, False)]
        totals = [sums.one_by_one(map(rounded, terms), rounded)[-1] for rounded in ways]
        if totals[0] != totals[1]:
            return _call(terms, "fp16")


def _stalls(d: Draw) -> Call:
    """Too small for a while, then one that is not, and then again."""
    small = [0.25] * d.integer(5, 9)
    return _call([1024.0, *small, float(d.integer(3, 9)), *small], "fp16")


def _zeros_follow(d: Draw) -> Call:
    return _call([*_any(d, d.integer(9, 20), 0.5, 3.0), *[0.0] * d.integer(3, 9)], "fp16")


def _ties(d: Draw) -> Call:
    """At 2048 the numbers of fp16 are 2 apart: every odd term ends halfway."""
    return _call([2048.0, *(float(d.choice([1, 3, 5])) for _ in range(d.integer(20, 40)))], "fp16")


def _ends_where_it_began(d: Draw) -> Call:
    """Sorted by size, largest first: what comes last is lost."""
    return _call(sorted(_any(d, d.integer(300, 500), 0.001, 4.0), reverse=True), "bf16")


def _too_small(d: Draw) -> Call:
    """Less than half of the smallest number of fp16, each of them: the total stays at 0."""
    return _call(_any(d, d.integer(30, 50), 5e-9, 2.5e-8), "fp32", "fp16")


def _large_ones_cancel(d: Draw) -> Call:
    """Beside the large ones float64 loses the small ones, and so does the compensated sum() of Python 3.12."""
    large, middle = 2.0 ** d.integer(116, 124), 2.0 ** d.integer(56, 60)
    return _call([large, middle, *_any(d, d.integer(20, 40), 0.5, 3.0), -middle, -large], "fp32")


CASES = (
    Case("no terms", lambda d: _call([], "fp16", order=d.choice(ORDERS))),
    Case("one term", lambda d: _call(_any(d, 1), "fp16", order=d.choice(ORDERS))),
    Case("fp16", lambda d: _call(_same(d, 0.005, 0.02, 150, 250), "fp16")),
    Case("fp16 terms, fp32 sum", lambda d: _call(_same(d, 0.005, 0.02, 150, 250), "fp16", "fp32")),
    Case("fp32", lambda d: _call(_any(d, d.integer(100, 200)), "fp32")),
    Case("bf16 terms, fp32 sum", lambda d: _call(_any(d, d.integer(100, 200)), "bf16", "fp32")),
    Case("fp16 terms, bf16 sum", _coarser_sum),
    Case("terms beside a tie", _just_off_a_tie),
    Case("mixed signs", lambda d: _call(_any(d, d.integer(100, 200), -50, 50), "fp16")),
    Case("fp16 until it sticks", lambda d: _call(_same(d, 0.008, 0.015, 4300, 4500), "fp16")),
    Case("bf16 until it sticks", lambda d: _call(_same(d, 0.6, 1.4, 700, 800), "bf16")),
    Case("it stalls and goes on", _stalls),
    Case("largest first", _ends_where_it_began),
    Case("zeros follow", _zeros_follow),
    Case("too small from the first on", _too_small),
    Case("large terms cancel", _large_ones_cancel),
    Case("ties", _ties),
    Case("too large for fp16", lambda d: _call(_same(d, 900.0, 1100.0, 80, 120), "fp16")),
    Case("subnormal fp16", _subnormal),
    Case("in pairs", lambda d: _call(_any(d, 2 ** d.integer(5, 7), -9, 10), "fp16", order=PAIRS)),
    Case("in pairs, an odd number", lambda d: _telling(d, "fp16", PAIRS)),
    Case("in pairs, bf16", lambda d: _telling(d, "bf16", PAIRS)),
    Case("in pairs, fp32", lambda d: _telling(d, "fp32", PAIRS)),
    Case("compensated", lambda d: _call(_same(d, 0.008, 0.015, 4300, 4500), "fp16", order=KAHAN)),
    Case("compensated, all sizes", lambda d: _telling(d, "fp16", KAHAN)),
    Case("compensated, bf16", lambda d: _telling(d, "bf16", KAHAN)),
    Case("compensated, fp32", lambda d: _telling(d, "fp32", KAHAN)),
)


def accept(got, want, args) -> str | None:
    if not isinstance(got, (tuple, list)) or len(got) != 3:
        return f"`accumulate` should return (total, drift, stuck); got {got!r:.60}"
    for value, what in zip(got[:2], ("total", "drift"), strict=True):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"the {what} should be a number, got {type(value).__name__}"
    if got[0] != want[0]:
        return f"the total is wrong: got {got[0]!r}, and every bit counts"
    if not math.isclose(got[1], want[1], rel_tol=1e-12, abs_tol=1e-12 * max(1.0, abs(exact(args["terms"])))):
        return f"the total is right, the drift is not: got {got[1]:.6g}"
    if isinstance(got[2], bool) or got[2] != want[2]:
        return f"total and drift are right, where it sticks is not: got {got[2]!r:.40}"
    return None


# Mistakes that some draws of a case show and others do not
_ROUNDING = "terms_not_rounded ties_not_to_even"
_AT_THE_END = f"rounded_at_the_end {_ROUNDING}"
_PAIRED = f"order_ignored {_AT_THE_END}"
_STUCK = "stuck_off_by_one stuck_never stuck_total"
UNSTEADY = {
    "one term": "terms_not_rounded",
    "fp16": _AT_THE_END,
    "fp32": "rounded_at_the_end ties_not_to_even",
    "bf16 terms, fp32 sum": "ties_not_to_even",
    "fp16 terms, bf16 sum": f"first_stall sum_in_format_of_terms terms_in_format_of_sum {_AT_THE_END} {_STUCK}",
    "terms beside a tie": "rounded_twice sum_in_format_of_terms terms_in_format_of_sum terms_not_rounded",
    "mixed signs": f"first_stall {_AT_THE_END}",
    "fp16 until it sticks": _ROUNDING,
    "bf16 until it sticks": _ROUNDING,
    "largest first": _ROUNDING,
    "zeros follow": _AT_THE_END,
    "ties": _STUCK,
    "too large for fp16": _ROUNDING,
    "subnormal fp16": "terms_not_rounded",
    "in pairs": f"stuck_in_every_order pairs_far_apart {_PAIRED}",
    "in pairs, an odd number": _PAIRED,
    "in pairs, bf16": _PAIRED,
    "in pairs, fp32": _PAIRED,
    "compensated": f"lost_in_float64 lost_at_the_end subnormals_flushed {_AT_THE_END}",
    "compensated, all sizes": f"subnormals_flushed lost_added_up order_ignored {_ROUNDING}",
    "compensated, bf16": f"lost_added_up order_ignored {_ROUNDING}",
    "compensated, fp32": "lost_added_up order_ignored ties_not_to_even",
}

ACCUMULATE = Exercise(
    name="mlp.accumulate",
    entry="accumulate",
    points=5,
    about="where a sum in few bits stops growing, and which order or correction helps",
    point=("terms beside a tie", "fp16 until it sticks", "compensated"),
    kind="scenario",
    cases=telling(CASES, answer, MISTAKES, accept, among=UNSTEADY),
    oracle=answer,
    mistakes=MISTAKES,
    returns=("sum",),
    accept=accept,
    hides=("course_lib.numerics",),
    launches=False,
)
