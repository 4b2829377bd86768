"""How people add in a format and get other bits than the hardware."""

import math
from functools import partial

from autograder.exercise import Mistake
from autograder.exercises.mlp import sums
from autograder.exercises.mlp.sums import ORDERS, answer, exact, in_pairs, near, one_by_one, stuck_after, summed


def _rounding(**changes):
    return lambda v: answer(v, rounding=partial(near, **changes))


def _twice(v):
    """Terms by way of fp32."""
    total, _, stuck = answer(v | {"terms": [near(t, "fp32") for t in v["terms"]]})["sum"]
    return {"sum": (total, total - exact(v["terms"]), stuck)}


def _terms_again(v):
    """Terms to the format of the sum as well, before they are added."""
    terms = [near(near(t, v["of_terms"]), v["of_sum"]) for t in v["terms"]]
    total, _, stuck = answer(v | {"terms": terms}, round_terms=False)["sum"]
    return {"sum": (total, total - exact(v["terms"]), stuck)}


def _order(name: str, made):
    return lambda v: answer(v, orders={**ORDERS, name: made})


def _from(v, drift=None, stuck=None) -> dict:
    """The right total, with another drift or another place."""
    terms, running, total = summed(v)
    made = answer(v)["sum"]
    return {
        "sum": (
            total,
            made[1] if drift is None else drift(terms, total),
            made[2] if stuck is None else stuck(terms, running),
        )
    }


def _stuck(place):
    """place(terms, running sums), where there are running sums."""
    return lambda v: _from(v, stuck=lambda terms, running: None if running is None else place(terms, running))


def _first_stall(terms, running):
    before = [0.0, *running]
    return next((i for i, t in enumerate(terms) if t and before[i + 1] == before[i]), None)


def _zeros_count(terms, running):
    last = max((i + 1 for i, s in enumerate(running) if s != ([0.0, *running])[i]), default=0)
    return last if last < len(running) else None


def _in_every_order(v):
    rounded = partial(near, of=v["of_sum"])
    return _from(v, stuck=lambda terms, running: stuck_after(terms, running or one_by_one(terms, rounded)))


def _shifted(by: int):
    def place(terms, running):
        found = stuck_after(terms, running)
        return None if found is None else found + by

    return place


def _rounded_at_the_end(v, added: str):
    """Added exactly, or in fp32, in the order that is asked for."""
    if added == "exactly":
        terms, running = [near(t, v["of_terms"]) for t in v["terms"]], None
        total = exact(terms)
    else:
        terms, running, total = summed(v, of_sum="fp32")
    total = near(total, v["of_sum"])
    return {"sum": (total, total - exact(v["terms"]), None if running is None else stuck_after(terms, running))}


def _one_by_one(v, stuck: bool):
    """In every order, and also with a place where it sticks."""
    total, drift, place = answer(v, orders={})["sum"]
    return {"sum": (total, drift, place if stuck or v["order"] == "one by one" else None)}


def _kahan(**changes):
    return _order("compensated", partial(sums.compensated, **changes))


FORMATS = (
    Mistake(
        "terms_rounded_again",
        "A term is rounded to the format of the sum before it is added: it enters as it lies in memory, and only the "
        "sum is rounded.",
        answer=_terms_again,
    ),
    Mistake(
        "subnormals_flushed",
        "Wrong only where numbers are subnormal: they are kept, and not set to 0.",
        answer=_rounding(subnormals=False),
    ),
    Mistake(
        "terms_in_format_of_sum",
        "The terms are rounded to the format of the sum: data lies in memory in `of_terms`.",
        answer=lambda v: answer(v, of_terms=v["of_sum"]),
    ),
    Mistake(
        "terms_not_rounded",
        "The terms are added as they were given: data lies in memory in `of_terms`, so each is rounded to that first.",
        answer=lambda v: answer(v, round_terms=False),
    ),
    Mistake(
        "sum_in_format_of_terms",
        "Additions are rounded to the format of the terms: the accumulator has a format of its own, `of_sum`.",
        answer=lambda v: answer(v, of_sum=v["of_terms"]),
    ),
    Mistake(
        "rounded_at_the_end",
        "The sum is rounded once, at the end: an accumulator is rounded after every addition.",
        answer=_rounded_at_the_end,
        variants=("exactly", "in fp32"),
    ),
    Mistake(
        "cut_off",
        "What does not fit is cut off: rounding is to the nearest number.",
        answer=_rounding(whole=math.trunc),
    ),
    Mistake(
        "ties_not_to_even",
        "Halfway between two numbers the one away from zero is taken: ties go to the even one.",
        answer=_rounding(whole=sums.whole_away),
    ),
    Mistake(
        "held_at_the_largest",
        "A sum that is too large stays at the largest number: without being asked, hardware makes it infinite.",
        answer=_rounding(saturate=True),
    ),
    Mistake(
        "spacing_goes_on_shrinking",
        "What is too large becomes infinite, but small numbers keep all their bits: below 2^-14 the numbers of fp16 "
        "are 2^-24 apart, however small.",
        answer=_rounding(evenly=False),
    ),
    Mistake(
        "no_infinity",
        "Subnormal numbers are right, but nothing is too large: fp16 ends at 65504, and beyond it is infinity.",
        answer=_rounding(bounded=False),
    ),
    Mistake(
        "range_ignored",
        "Only the number of bits is rounded, as if exponents had no end: fp16 ends at 65504, and below 2^-14 its "
        "numbers are 2^-24 apart.",
        answer=_rounding(exponents=False),
    ),
    Mistake(
        "rounded_twice",
        "Rounded twice: first to fp32 and then to fp16. A term just beside the middle of two numbers comes to lie in "
        "the middle, and goes to the even one. torch converts float64 to float16 that way; numpy does not.",
        answer=_twice,
    ),
)

IN_ORDER = (
    Mistake(
        "odd_one_dropped",
        "In pairs, an odd number at the end is lost: it waits for the next round.",
        answer=_order("in pairs", partial(in_pairs, left_over=False)),
    ),
    Mistake(
        "odd_one_joins",
        "In pairs, an odd number at the end is added to the sum of the last pair at once: it waits for the next round.",
        answer=_order("in pairs", partial(in_pairs, joins=True)),
    ),
    Mistake(
        "in_halves",
        "The list is cut in the middle, and its halves likewise: the pairs are neighbours, and then neighbours of "
        "sums. For a number of terms that is no power of two these are other pairs.",
        answer=_order("in pairs", sums.halves),
    ),
    Mistake(
        "pairs_far_apart",
        "Each term is paired with one half the list away: the pairs are neighbours.",
        answer=_order("in pairs", sums.ends),
    ),
    Mistake(
        "lost_added",
        "What is lost has the wrong sign: `following - total - wanted` is too much where the sum was rounded up, so it "
        "is subtracted from the next term.",
        answer=_order("compensated", sums.lost_added),
    ),
    Mistake(
        "lost_in_float64",
        "The lost part is kept in float64: all of it is in the format of the sum, every step rounded.",
        answer=_kahan(lost_in=float),
    ),
    Mistake(
        "lost_added_up",
        "The lost part of all terms is added up, so it is taken off again and again: each addition replaces it.",
        answer=_kahan(kept=True),
    ),
    Mistake(
        "lost_at_the_end",
        "What was lost is summed beside and added at the end: it goes into the next term, while it is small.",
        answer=_order("compensated", sums.lost_at_the_end),
    ),
    Mistake(
        "order_ignored",
        "Terms are added one by one in every order.",
        answer=_one_by_one,
        variants=(False, True),
    ),
)

PLACES = (
    Mistake(
        "drift_of_rounded_terms",
        "The drift is measured from the sum of the rounded terms: rounding them is a part of it. Take the terms as "
        "they were given.",
        answer=lambda v: _from(v, drift=lambda terms, total: total - exact(terms)),
    ),
    Mistake(
        "drift_from_a_rounded_sum",
        "The drift is measured from a sum that was rounded itself: float64 loses small terms beside large ones, and so "
        "does `sum`, compensated (from Python 3.12 on) or not. `math.fsum` is exact.",
        answer=lambda v: _from(v, drift=lambda terms, total: total - sum(v["terms"])),
    ),
    Mistake(
        "drift_with_other_sign",
        "The drift has the other sign: total less exact sum.",
        answer=lambda v: _from(v, drift=lambda terms, total: exact(v["terms"]) - total),
    ),
    Mistake(
        "drift_relative",
        "The drift is divided by the sum: it is the difference itself.",
        answer=lambda v: _from(v, drift=lambda terms, total: (total - exact(v["terms"])) / (exact(v["terms"]) or 1.0)),
    ),
    Mistake(
        "first_stall",
        "A term that changes nothing is not the end: the sum can go on when a larger one comes. Look for the last term "
        "that changes it.",
        answer=_stuck(_first_stall),
    ),
    Mistake(
        "zeros_stick",
        "Terms of 0 change no sum: it sticks only where others follow.",
        answer=_stuck(_zeros_count),
    ),
    Mistake(
        "stuck_off_by_one",
        "The place is one off: stuck is the number of terms that still counted, not the index of the last of them nor "
        "the number of the first that does not.",
        answer=lambda v, by: _stuck(_shifted(by))(v),
        variants=(-1, 1),
    ),
    Mistake(
        "stuck_at_0_is_none",
        "Where no term ever moves the total from 0, it is stuck after 0 terms: that is the number 0, and not None.",
        answer=_stuck(lambda terms, running: stuck_after(terms, running) or None),
    ),
    Mistake(
        "stuck_in_every_order",
        "stuck is a number in orders for which it is None.",
        answer=_in_every_order,
    ),
    Mistake(
        "stuck_never",
        "stuck is always None: look after which term the sum stays the same.",
        answer=_stuck(lambda terms, running: None),
    ),
    Mistake(
        "stuck_total",
        "stuck is the sum at which it sticks: asked is after how many terms.",
        answer=_stuck(lambda terms, running: None if stuck_after(terms, running) is None else running[-1]),
    ),
)


MISTAKES = (*IN_ORDER, *FORMATS, *PLACES)  # what fails in few cases first: others may meet it there by chance
