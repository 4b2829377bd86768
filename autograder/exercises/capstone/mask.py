"""capstone.mask: make the mask of a vision tower once, and keep the tower one graph.

    HoistedTower(sizes) -> a torch.nn.Module    sizes: course_lib.models.vision.Sizes
    module(patches, lengths) -> (B, width)      patches (B, N, numbers a patch), N = sizes.patches; lengths (B,)

`course_lib.models.siglip.naive.Tower` computes what is wanted; lengths are integers from 1 to N, of 32 or 64 bits. Each
of its layers makes the mask again. The repaired module has the naive tower's parameters: it takes its state dict, and
gives it back; a layer that holds q, k and v at once may be called `attention.qkv`.

Right means: results and gradients are those of the naive tower, also where patches behind a length are NaN or
infinite, and neither patches nor lengths are changed. Dynamo makes one graph of the first call, which calls nothing
but torch's own operators, and nothing is compiled again when lengths change or the number of images does (2 and
more). And values that depend on `lengths` and on nothing else are made as often in a tower of one layer as in one of
three, and all layers read the same ones.

The strong tower does all of that, so it is hidden from a submission.
"""

from __future__ import annotations

import itertools

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.capstone.mask_mistakes import LIMIT, MISTAKES, NEARLY_RIGHT, truth
from autograder.exercises.compiled_towers import graphs_wrong, largest, results_wrong
from autograder.exercises.number_lists import differ
from autograder.exercises.places import counted, listed
from autograder.exercises.telling import telling
from autograder.inside.probes.hoisting import GIVEN

# -------------------------------------------------------------------------------------------- the comparison


def accept(got, want, args) -> str | None:
    if isinstance(want, list):
        return results_wrong(got, want, LIMIT, "the naive tower")
    if not isinstance(got, dict):
        return "the tower could not be looked into"
    judged = {"first": graphs_wrong, "again": _hoisting_wrong}
    return next((judge for key, judge in judged.items() if key in want), _gradients_wrong)(got, want)


def _gradients_wrong(got, want) -> str | None:
    if missing := sorted(set(want) - set(got)):
        return f"{listed(missing)} got no gradient"
    limit = LIMIT * largest(want.values())
    wrong = [name for name, true in want.items() if differ(got[name], true, limit)]
    if not wrong:
        return None
    nan = any(value != value for name in wrong if isinstance(got[name], list) for value in got[name])
    what = "holds NaN" if nan else "is another one than the naive tower's"
    return f"the results are judged apart; the gradient of {listed(wrong)} {what}"


def _hoisting_wrong(got, want) -> str | None:
    if set(got) != set(want):
        return "the layers could not be compared"
    if got["again"]:
        found = f"{counted(len(got['again']), 'operation')} more: {listed(got['again'])}"
        return f"with more layers, what depends on `lengths` alone takes {found}"
    if got["masks"]:
        return "with more layers, they read more masks: all of them can read the same one"
    return None


# ------------------------------------------------------------------------------------------------- the cases


def _call(d: Draw, lengths: list[list[int]], patches: int, **config) -> Call:
    config = {"patch": 3, "patches": patches, "width": 4, "mlp": 6, "heads": 2, "layers": 2, "sharp": 1.0, **config}
    config["seed"] = d.integer(0, 2**31)
    calls = [{"lengths": images, "seed": d.integer(0, 2**31)} for images in lengths]
    sizes = (
        f"{counted(config['layers'], 'layer')}, {counted(patches, 'patch', 'patches')}, {counted(len(calls), 'call')}"
    )
    return Call({"config": config, "calls": calls}, sizes)


def _lengths(d: Draw, images: int, patches: int) -> list[int]:
    """One image of one patch, one of several but not of all, and the others in between."""
    lengths = [d.integer(2, patches) for _ in range(images)]
    one, some = d.rng.sample(range(images), 2)
    lengths[one], lengths[some] = 1, d.integer(2, patches - 1)
    return lengths


def _short(d: Draw) -> Call:
    """No image fills the patches."""
    n = d.integer(7, 9)
    return _call(d, [_lengths(d, images, n - 3) for images in (3, 5)], n)


def _other_lengths(d: Draw) -> Call:
    """All images are full in one of the calls."""
    n, images = d.integer(5, 6), d.integer(3, 5)
    return _call(d, [_lengths(d, images, n), [n] * images, _lengths(d, images, n)], n)


def _grows(d: Draw) -> Call:
    n = d.integer(4, 6)
    return _call(d, [_lengths(d, images, n) for images in (2, 3, 5, 8)], n)


def _shrinks(d: Draw) -> Call:
    n = d.integer(4, 6)
    return _call(d, [_lengths(d, images, n) for images in (7, 4, 2)], n)


def _no_number(d: Draw) -> Call:
    """NaN and infinite numbers in every call."""
    n = d.integer(5, 7)
    call = _call(d, [_lengths(d, images, n) for images in (4, 3)], n)
    for one in call.args["calls"]:
        kinds = itertools.cycle(("nan", "inf", "-inf"))
        one["padding"] = [next(kinds) if length < n else "nan" for length in one["lengths"]]
    return call


def _sharp(d: Draw) -> Call:
    """Scores of millions: what is added to those of padding has to be more. One layer, since a second one would
    turn roundings of the first into other choices.
    """
    n = d.integer(6, 8)
    return _call(d, [_lengths(d, 16, n)], n, layers=1, sharp=2000.0)


def _layers(d: Draw) -> Call:
    n = d.integer(4, 6)
    return _call(d, [_lengths(d, images, n) for images in (2, 3)], n, layers=3)


def _wide(d: Draw) -> Call:
    n = d.integer(4, 6)
    sizes = {"width": 6, "heads": d.choice((1, 3)), "patch": d.integer(4, 5), "mlp": d.integer(7, 9)}
    call = _call(d, [_lengths(d, images, n) for images in (3, 2)], n, **sizes)
    for one in call.args["calls"]:
        one["type"] = "int32"
    return call


CASES = (
    Case("short images", _short),
    Case("other lengths each time", _other_lengths),
    Case("the batch grows", _grows),
    Case("padding that is no number", _no_number),
    Case("large scores", _sharp),
    Case("three layers", _layers, live=False),
    Case("the batch shrinks", _shrinks, live=False),
    Case("other sizes, lengths of 32 bits", _wide, live=False),
)

MASK = Exercise(
    name="capstone.mask",
    entry="HoistedTower",
    points=4,
    about="a tower in one graph, whose mask is made once for all layers",
    point=("short images", "other lengths each time", "padding that is no number"),
    kind="scenario",
    cases=telling(CASES, truth, MISTAKES, accept, also=NEARLY_RIGHT, among={"large scores": "mask_too_weak"}),
    oracle=truth,
    mistakes=MISTAKES,
    returns=("results", "gradients", "graphs", "hoisted"),
    accept=accept,
    launches=False,
    probe="autograder.inside.probes.hoisting:hoisted",
    hides=(GIVEN,),
)
