"""Situations of dispatch.keys that nobody has written down: tensors and contexts of one kind, put together at random.

The fixed cases have few variants: a table of a few hundred rows, made at home, could hold all their answers.
Therefore more than half of the cases are mixtures, so that such a table earns nothing. Each mixture keeps to one
subject, because several subjects at once could hide a misunderstanding. It is drawn again until one of its subject's
misunderstandings gives a wrong answer, so that each misunderstanding, also a rare one, costs points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autograder.exercise import Draw
from autograder.exercises.dispatch.keys_mistakes import truth

Situation = tuple[list[dict], list[str]]  # tensors, around
COPIES = ("view", "clone")
AUTOCAST = ("autocast", "autocast(False)")
AUTOGRAD = ("no_grad", "inference_mode", "below autograd")
MODES = ("dispatch mode", "handler")


def tensor(*made: str, device="cpu", needs=False) -> dict:
    return {"device": device, "requires_grad": needs, "made": list(made)}


def some(d: Draw, options: Sequence, low: int, high: int) -> list:
    return [d.choice(options) for _ in range(d.integer(low, high))]


def _device(d: Draw) -> str:
    return d.choice(("cpu", "cpu", "cpu", "meta"))


# -------------------------------------------------------------------------------------------- kinds of tensors


def plain(d: Draw) -> dict:
    return tensor(*some(d, COPIES, 0, 4), device=_device(d), needs=d.choice((False, True)))


def of_inference(d: Draw) -> dict:
    later = d.choice(([], [], ["wrapped"]))
    return tensor("inference", *some(d, ("view", "view", "clone"), 0, 4), *later, device=_device(d))


def wrapped(d: Draw) -> dict:
    return tensor(*some(d, COPIES, 0, 4), "wrapped", device=_device(d))


# ------------------------------------------------------------------------------------------------ the mixtures


def inference_tensors(d: Draw) -> Situation:
    around = some(d, ("no_grad", "inference_mode", *AUTOCAST, "dispatch mode"), 4, 7)
    return [of_inference(d) for _ in range(d.integer(1, 3))], around


def wrappers(d: Draw) -> Situation:
    tensors = [d.choice((wrapped, wrapped, plain))(d) for _ in range(d.integer(1, 3))]
    return tensors, some(d, (*AUTOGRAD, *AUTOCAST), 4, 7)


def gradients(d: Draw) -> Situation:
    return [plain(d) for _ in range(d.integer(1, 3))], some(d, (*AUTOGRAD, *AUTOCAST, "dispatch mode"), 4, 7)


def autocast(d: Draw) -> Situation:
    return [plain(d) for _ in range(d.integer(1, 3))], some(d, (*AUTOCAST, *AUTOCAST, *AUTOGRAD), 4, 7)


def modes(d: Draw) -> Situation:
    tensors = [d.choice((plain, plain, wrapped))(d) for _ in range(d.integer(1, 3))]
    return tensors, some(d, (*MODES, *MODES, "no_grad", "autocast", "inference_mode"), 4, 7)


SUBJECTS: dict[str, tuple[Callable[[Draw], Situation], tuple[type, ...]]] = {
    "inference tensors": (
        inference_tensors,
        (truth.WrappersStay, truth.ClonesStay, truth.ViewsAreNew, truth.ViewsOfTensorsOnly, truth.CommonOnly),
    ),
    "wrappers": (
        wrappers,
        (
            truth.WrapperIgnored,
            truth.WrapperOnly,
            truth.WithoutSnapshot,
            truth.moved("Python", "Autocast"),
            truth.CommonOnly,
        ),
    ),
    "gradients": (
        gradients,
        (
            truth.NoGradExcludes,
            truth.InferenceModeExcludesBoth,
            truth.OnlyWhereRequired,
            truth.LowerBackend,
            truth.InferenceModeIgnored,
        ),
    ),
    "autocast": (
        autocast,
        (
            truth.AutocastIncludes,
            truth.moved("Autocast", "ADInplaceOrView"),
            truth.EndsWin,
            truth.EndsIgnored,
            truth.AutocastAlways,
        ),
    ),
    "modes": (
        modes,
        (
            truth.HandlerEndsModes,
            truth.HandlerInItsMode,
            truth.HandlerIgnored,
            truth.ExcludeFirst,
            truth.ModeIgnored,
        ),
    ),
}
TIMES = 10  # each: a table of what has a name and a guess stay right in less than half of the cases


def mixture(d: Draw, subject: str, number: int) -> Situation:
    """The `number`-th of a subject: drawn until one of its misunderstandings gives another answer than the truth."""
    draw, misunderstood = SUBJECTS[subject]
    while True:
        tensors, around = draw(d)
        if misunderstood[number % len(misunderstood)]().met(tensors, around) != truth.Rule().met(tensors, around):
            return tensors, around
