"""compile.breaks: repair a small vision tower, so that torch.compile makes one graph of it.

    RepairedTower(width=..., heads=..., layers=..., positions=...) -> a torch.nn.Module
    module(patches, lengths) -> (images, width)

`course_lib.models.broken_tower.Tower` computes what is wanted and says what the arguments are. Four of its habits end a
graph: every layer reads a number out of a tensor to make the mask; the positions go through NumPy; it prints; it takes
the time. The repaired module has the same weights under the same names (the easiest way is a subclass) and need not
print or take the time.

Right means, for every mask: the results are those of the broken tower; Dynamo makes one graph of the first call, which
ends nowhere but at the result and calls nothing but torch's own operators; and nothing is compiled again when lengths
change or the number of images grows. That number may be dynamic from the first call on (`maybe_mark_dynamic`).
"""

from __future__ import annotations

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.compile.breaks_mistakes import MISTAKES, truth
from autograder.exercises.compiled_towers import graphs_wrong, results_wrong
from autograder.exercises.places import counted

LIMIT = 1e-9  # of the largest number: float64, the same maths in another order

# -------------------------------------------------------------------------------------------- the comparison


def accept(got, want, args) -> str | None:
    if isinstance(want, dict):
        return graphs_wrong(got, want)
    return results_wrong(got, want, LIMIT, "the broken tower")


# ------------------------------------------------------------------------------------------------- the cases


def _call(d: Draw, lengths: list[list[int]], patches: int, layers: int = 1, **config) -> Call:
    config = {"width": 4, "heads": 2, "layers": layers, "positions": _between(d, patches), **config}
    config["seed"] = d.integer(0, 2**31)
    calls = [{"patches": patches, "lengths": images, "seed": d.integer(0, 2**31)} for images in lengths]
    sizes = f"{counted(layers, 'layer')}, {counted(patches, 'patch', 'patches')}, {counted(len(calls), 'call')}"
    return Call({"config": config, "calls": calls}, sizes)


def _between(d: Draw, patches: int) -> int:
    """So many positions that some patches lie between two: no way to round a place gives what those should have."""
    return d.choice([n for n in (5, 6, 7) if (n - 1) % (patches - 1)])


def _lengths(d: Draw, images: int, patches: int) -> list[int]:
    """At least one image is padded, and they are not all alike."""
    lengths = [d.integer(2, patches) for _ in range(images)]
    lengths[d.integer(0, images - 1)] = 1
    return lengths


def _full(d: Draw) -> Call:
    n = d.integer(4, 7)
    return _call(d, [[n] * images for images in (2, 4)], n)


def _short(d: Draw) -> Call:
    """No image fills the patches."""
    n = d.integer(7, 9)
    return _call(d, [_lengths(d, images, n - 3) for images in (3, 5)], n)


def _other_masks(d: Draw) -> Call:
    n, images = d.integer(5, 7), d.integer(3, 5)
    return _call(d, [_lengths(d, images, n) for _ in range(4)], n)


def _grows(d: Draw) -> Call:
    n = d.integer(4, 6)
    return _call(d, [_lengths(d, images, n) for images in (2, 3, 5, 8)], n)


def _shrinks(d: Draw) -> Call:
    n = d.integer(4, 6)
    return _call(d, [_lengths(d, images, n) for images in (7, 4, 2)], n)


def _interpolated(d: Draw) -> Call:
    n = d.integer(9, 13)
    return _call(d, [_lengths(d, 3, n)], n, positions=d.integer(3, 6))


def _layers(d: Draw) -> Call:
    n = d.integer(4, 6)
    return _call(d, [_lengths(d, images, n) for images in (2, 3)], n, layers=3)


def _wide(d: Draw) -> Call:
    n, heads = d.integer(4, 6), d.choice((1, 3))
    return _call(d, [_lengths(d, images, n) for images in (3, 2)], n, width=6, heads=heads)


CASES = (
    Case("images of full length", _full),
    Case("short images", _short),
    Case("another mask each time", _other_masks),
    Case("the batch grows", _grows),
    Case("positions in between", _interpolated),
    Case("three layers", _layers, live=False),
    Case("the batch shrinks", _shrinks, live=False),
    Case("other sizes of the model", _wide, live=False),
)

BREAKS = Exercise(
    name="compile.breaks",
    entry="RepairedTower",
    points=8,
    about="a model in one graph that computes what it did",
    point=("short images", "another mask each time"),
    kind="scenario",
    cases=CASES,
    oracle=truth,
    mistakes=MISTAKES,
    returns=("results", "graphs"),
    accept=accept,
    launches=False,
    probe="autograder.inside.probes.towers:compiled",
)
