"""How people merge two partial softmaxes wrongly."""

import math

from autograder.exercise import Mistake


def exp_of(old: float, new: float) -> float:
    """The factor for a sum when its maximum changes from `old` to `new`."""
    return 0.0 if old == -math.inf else math.exp(old - new)


def merged(v) -> dict:
    """The state of both parts together."""
    return _state(v, *_factors(v))


def _factors(v, m: float | None = None, factor=exp_of) -> tuple[float, float, float]:
    """(the maximum, the factor of a, the factor of b)."""
    m = max(v["a"]["m"], v["b"]["m"]) if m is None else m
    return m, factor(v["a"]["m"], m), factor(v["b"]["m"], m)


def _state(v, m: float, of_a: float, of_b: float) -> dict:
    return {"m": m, "l": of_a * v["a"]["l"] + of_b * v["b"]["l"], "o": _mixed(v, of_a, of_b)}


def _mixed(v, of_a: float, of_b: float) -> list[float]:
    return [of_a * x + of_b * y for x, y in zip(v["a"]["o"], v["b"]["o"], strict=True)]


def _from_state(change):
    """`change` makes the wrong state from the arguments, the right state, and a variant where there are some."""

    def answer(v, *variant):
        try:
            return {"merged": change(v, merged(v), *variant)}
        except OverflowError:  # as `math.exp` does for the student: such a call leaves no answer
            return {}

    return answer


def _with_keys(answer):
    """The mistake where some part holds a key: who makes it may still know that there can be none."""
    return lambda v: answer(v) if v["a"]["l"] or v["b"]["l"] else {}


def _with_factor(factor):
    return lambda v, right: _state(v, *_factors(v, factor=factor))


def _one_sided(wrong):
    """The mistake of `wrong`, made only where the larger score is in one certain part."""

    def sign(e) -> bool:
        ran = [t for t in e.failing if t.outcome.error is None]
        sides = {_first_is_larger(t.args) for t in ran}
        others = [t for t in e.tried if t.right and t.args["a"]["l"] and t.args["b"]["l"]]
        told = all(_is(t, wrong(t.args, merged(t.args)), e) for t in ran)
        return bool(ran) and len(sides) == 1 and told and any(_first_is_larger(t.args) not in sides for t in others)

    return sign


def _first_is_larger(args) -> bool:
    return args["a"]["m"] > args["b"]["m"]


def _is(t, state, e) -> bool:
    return e.exercise.accept(t.outcome.outputs.get("merged"), state, t.args) is None


def _nan_without_keys(v, right):
    """-inf minus -inf, where neither part holds a key."""
    return {"m": right["m"], "l": math.nan, "o": [math.nan] * len(right["o"])} if right["l"] == 0 else right


def _weighted(v, right):
    """o is taken for a finished average, so it is weighted with l once more."""
    _, of_a, of_b = _factors(v)
    return right | {"o": _mixed(v, of_a * v["a"]["l"], of_b * v["b"]["l"])}


def _reference(pick):
    """Another number takes the place of the largest score, in the sums and in m."""

    def change(v, right):
        m = pick(v["a"]["m"], v["b"]["m"])
        return right if m == -math.inf else _state(v, *_factors(v, m))

    return change


def _smaller(a: float, b: float) -> float:
    return min(a, b) if min(a, b) > -math.inf else max(a, b)


def _larger_part(v, right):
    return v["a"] if v["a"]["m"] >= v["b"]["m"] else v["b"]


def _scaled_down(v, right):
    """o / l: zeros where there is no key."""
    return right | {"o": [x / (right["l"] or 1.0) for x in right["o"]]}


def _finite_without_keys(v, right, m):
    return right if right["l"] else right | {"m": m}


def _logarithm(v, right):
    return right | {"m": right["m"] + math.log(right["l"]) if right["l"] else right["m"]}


MISTAKES = (
    Mistake(
        "nan_without_keys",
        "NaN when neither part holds a key: -inf - (-inf) is NaN. While the new maximum is -inf, both factors have to "
        "be 0.",
        answer=_from_state(_nan_without_keys),
    ),
    Mistake(
        "finite_without_keys",
        "With no key in either part m is a number: the maximum of no scores is -inf. A score may lie below any number.",
        answer=_from_state(_finite_without_keys),
        variants=(0.0, -1e4, -1e6, -1e9, -1e10, -1e30, -1.7976931348623157e308),
    ),
    Mistake(
        "one_part_rescaled",
        "Right only while one and the same part holds the larger score: either maximum may be the one that is left "
        "behind, so both parts need a factor.",
        sign=_one_sided(lambda v, right: _state(v, right["m"], 1.0, 1.0)),
    ),
    Mistake(
        "nothing_rescaled",
        "Both sums are added as they are, but each was made with its own maximum. Multiply l and o of each part with "
        "exp(its m - the new m) first.",
        answer=_from_state(lambda v, right: _state(v, right["m"], 1.0, 1.0)),
    ),
    Mistake(
        "sum_not_rescaled",
        "o is right and l is not: the sums l belong to the old maxima too. Multiply them with the same factors as o.",
        answer=_from_state(lambda v, right: right | {"l": v["a"]["l"] + v["b"]["l"]}),
    ),
    Mistake(
        "accumulator_not_rescaled",
        "l is right and o is not: the accumulators belong to the old maxima too. Multiply them with the same factors "
        "as l.",
        answer=_from_state(lambda v, right: right | {"o": _mixed(v, 1.0, 1.0)}),
    ),
    Mistake(
        "factors_swapped",
        "Each part is multiplied with the factor of the other.",
        answer=_from_state(lambda v, right: _state(v, right["m"], *reversed(_factors(v)[1:]))),
    ),
    Mistake(
        "factor_inverted",
        "The factors are upside down: exp(old m - new m) is never above 1, exp(new m - old m) never below.",
        answer=_from_state(_with_factor(lambda old, new: 0.0 if old == -math.inf else math.exp(new - old))),
    ),
    Mistake(
        "no_maximum",
        "The sums were brought back to plain exp(score), which overflows past 709 and is no state for the m that is "
        "returned: multiply with exp(m - new m), never with exp(m).",
        answer=_from_state(lambda v, right: _state(v, right["m"], exp_of(v["a"]["m"], 0.0), exp_of(v["b"]["m"], 0.0))),
    ),
    Mistake(
        "base_two",
        "The factors are powers of 2: without log2(e) in the scores they are powers of e, `math.exp`.",
        answer=_from_state(_with_factor(lambda old, new: 0.0 if old == -math.inf else 2.0 ** (old - new))),
    ),
    Mistake(
        "maximum_from_zero",
        "Wrong when all scores are negative: the maximum was compared with 0. It starts at -inf.",
        answer=_with_keys(_from_state(_reference(lambda a, b: max(a, b, 0.0)))),
    ),
    Mistake(
        "maximum_of_one_part",
        "The new maximum is that of one part, whatever the other holds: it is the larger of the two.",
        sign=_one_sided(_reference(_smaller)),
    ),
    Mistake(
        "smaller_maximum",
        "The new maximum is the smaller of the two, so the factors grow without bound: it is the larger one.",
        answer=_from_state(_reference(_smaller)),
    ),
    Mistake(
        "larger_part_only",
        "This is the part with the larger maximum alone: the other one still counts, if only a little.",
        answer=_from_state(_larger_part),
    ),
    Mistake(
        "divided_by_sum",
        "o was divided by l: in a state it is the accumulator, and division comes once, after the last merge.",
        answer=_from_state(_scaled_down),
    ),
    Mistake(
        "weighted_average",
        "l has entered o as a weight: that is how two finished outputs are averaged. Here o is not divided yet, so "
        "its factor is exp(m - new m) alone.",
        answer=_from_state(_weighted),
    ),
    Mistake(
        "weighted_and_divided",
        "This o is the final output, an average weighted with l: a state keeps the accumulator, not divided.",
        answer=_from_state(lambda v, right: _scaled_down(v, _weighted(v, right))),
    ),
    Mistake(
        "logsumexp_for_maximum",
        "m + log(l) was returned as m: that is the logarithm of the whole sum, and l would have to be 1 with it.",
        answer=_from_state(_logarithm),
    ),
    Mistake(
        "lists_joined",
        "o has too many entries: `+` of two Python lists puts one behind the other. Add entry by entry.",
        sign=lambda e: e.failed("one key each") and all(_is_joined(t) for t in e.failing),
    ),
    Mistake(
        "first_column_only",
        "Only the first column of o is merged: every entry of the list needs it.",
        answer=_from_state(lambda v, right: right | {"o": right["o"][:1] + v["a"]["o"][1:]}),
    ),
)


def _is_joined(t) -> bool:
    o = (t.outcome.outputs.get("merged") or {}).get("o")
    return isinstance(o, list) and len(o) == 2 * len(t.args["a"]["o"])
