"""How people write the score of two turned vectors wrongly."""

import math
from statistics import median

from autograder.exercise import Mistake

HALVES = "halves"


def pairs(v, layout=None) -> list[tuple[float, float, float, float]]:
    """(q0, q1, k0, k1) of every pair."""
    q, k, half = v["q"], v["k"], len(v["q"]) // 2
    places = [(j, j + half) if (layout or v["layout"]) == HALVES else (2 * j, 2 * j + 1) for j in range(half)]
    return [(q[i], q[j], k[i], k[j]) for i, j in places]


def score(v, layout=None, distance=None, exponent=None, base=None, term=None) -> float:
    """The score. An argument that is given replaces the right value."""
    term, size = term or together, len(v["q"])
    distance, base = v["distance"] if distance is None else distance, base or v["base"]
    made = []
    for j, pair in enumerate(pairs(v, layout)):
        angle = distance * base ** (exponent(j, size) if exponent else -2 * j / size)
        made.append(term(*pair, math.cos(angle), math.sin(angle)))
    return math.fsum(made)


def together(q0, q1, k0, k1, cos, sin) -> float:
    return (q0 * k0 + q1 * k1) * cos + (q0 * k1 - q1 * k0) * sin


def _nearly_right(e) -> bool:
    """As near as fp32 comes; far from each other, q and k have an angle of fewer digits."""
    if e.raised_any():
        return False
    sizes = [math.hypot(*t.args["q"]) * math.hypot(*t.args["k"]) for t in e.failing]
    off = [abs(t.outcome.outputs["score"] - t.want["score"]) / size for t, size in zip(e.failing, sizes, strict=True)]
    return max(off) < 0.02 and median(off) < 1e-5


def _other(v) -> str:
    return "interleaved" if v["layout"] == HALVES else HALVES


def _with(**changes):
    """An answer with changes, each a value or a function of the arguments."""
    functions = ("exponent", "term")
    return lambda v: {
        "score": score(v, **{n: c(v) if callable(c) and n not in functions else c for n, c in changes.items()})
    }


def _layout_ignored(e) -> bool:
    """Wrong in one layout only, and there the score of the other."""
    ran = [t for t in e.failing if t.outcome.error is None]
    layouts = {t.args["layout"] for t in ran}
    one_is_right = any(t.right and t.args["layout"] not in layouts for t in e.tried)
    told = all(
        e.exercise.accept(t.outcome.outputs.get("score"), score(t.args, layout=_other(t.args)), t.args) is None
        for t in ran
    )
    return len(layouts) == 1 and one_is_right and told


MISTAKES = (
    Mistake(
        "layout_ignored",
        "`layout` changes nothing: pair j is (x[j], x[j + R / 2]) for halves and (x[2 j], x[2 j + 1]) for interleaved.",
        sign=_layout_ignored,
    ),
    Mistake(
        "layouts_swapped",
        "The two layouts are exchanged: halves pairs x[j] with x[j + R / 2], interleaved x[2 j] with x[2 j + 1].",
        answer=_with(layout=_other),
    ),
    Mistake(
        "distance_without_sign",
        "Right while the query comes later, wrong while the key does: the distance has a sign, and so has its sine.",
        answer=_with(distance=lambda v: abs(v["distance"])),
    ),
    Mistake(
        "distance_turned_round",
        "The sign of the distance, or of the term with the sine, is the other way round: with m - n it is "
        "(q0 k1 - q1 k0) sin.",
        answer=_with(distance=lambda v: -v["distance"]),
    ),
    Mistake(
        "cosine_alone",
        "The term with the sine is missing: (q0 k0 + q1 k1) cos is only half of the product.",
        answer=_with(term=lambda q0, q1, k0, k1, cos, sin: (q0 * k0 + q1 * k1) * cos),
    ),
    Mistake(
        "not_turned",
        "This is the product of q and k as they are: each pair counts with the cosine and the sine of its angle.",
        answer=_with(distance=lambda v: 0),
    ),
    Mistake(
        "plus_in_the_sine",
        "The term with the sine has a minus: q0 k1 - q1 k0.",
        answer=_with(term=lambda q0, q1, k0, k1, cos, sin: (q0 * k0 + q1 * k1) * cos + (q0 * k1 + q1 * k0) * sin),
    ),
    Mistake(
        "minus_in_the_cosine",
        "The term with the cosine has a plus: q0 k0 + q1 k1. (Of two complex numbers one is conjugated.)",
        answer=_with(term=lambda q0, q1, k0, k1, cos, sin: (q0 * k0 - q1 * k1) * cos - (q0 * k1 + q1 * k0) * sin),
    ),
    Mistake(
        "one_angle_for_all",
        "Every pair is turned by the distance itself: pair j turns base^(-2 j / R) as fast.",
        answer=_with(exponent=lambda j, size: 0.0),
    ),
    Mistake(
        "exponent_halved",
        "Frequencies fall half as fast as they should: the exponent is -2 j / R, R numbers and not R / 2 pairs.",
        answer=_with(exponent=lambda j, size: -j / size),
    ),
    Mistake(
        "exponent_doubled",
        "Frequencies fall twice as fast as they should: the exponent is -2 j / R.",
        answer=_with(exponent=lambda j, size: -4 * j / size),
    ),
    Mistake(
        "exponent_inverted",
        "Frequencies grow with j: the exponent is negative.",
        answer=_with(exponent=lambda j, size: 2 * j / size),
    ),
    Mistake(
        "base_hard_coded",
        "The base is always 10000: it is an argument.",
        answer=_with(base=10000.0),
    ),
    Mistake(
        "scaled",
        "The score is divided by the square root of the head size: here it is the plain product.",
        answer=lambda v: {"score": score(v) / math.sqrt(len(v["q"]))},
    ),
    Mistake(
        "single_precision",
        "Right to about 7 digits: something is computed in fp32, a tensor perhaps. A float of Python has 16 digits.",
        sign=_nearly_right,
    ),
)
