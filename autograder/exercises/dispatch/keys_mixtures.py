"""Situations of dispatch.keys that nobody has written down: tensors and contexts of one kind, put together at random.

The fixed cases have few variants: a table of 500 rows, made at home, could hold all their answers. Therefore more than
half of the cases are mixtures, so that such a table earns nothing. Each mixture keeps to one subject, because several
subjects at once could hide a misunderstanding. It is drawn again until one of its subject's misunderstandings gives a
wrong answer, so that each misunderstanding, also a rare one, costs points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autograder.exercise import Draw
from autograder.exercises.dispatch import keys_rules as rules
from autograder.exercises.dispatch.keys_rules import Rule, moved

Situation = tuple[list[dict], list[str]]  # tensors, around
COPIES = ("view", "clone")
GRADIENTS = ("no_grad", "enable_grad", "inference_mode", "inference_mode(False)", "below autograd")
AUTOCAST = ("autocast", "autocast(False)")
MODES = ("function mode", "dispatch mode", "handler")


def tensor(*made: str, device="cpu", layout="strided", dtype="float32", needs=False) -> dict:
    return {"device": device, "layout": layout, "dtype": dtype, "requires_grad": needs, "made": list(made)}


def some(d: Draw, options: Sequence, low: int, high: int) -> list:
    return [d.choice(options) for _ in range(d.integer(low, high))]


def _device(d: Draw) -> str:
    return d.choice(("cpu", "cpu", "meta"))


# -------------------------------------------------------------------------------------------- kinds of tensors


def plain(d: Draw) -> dict:
    return tensor(*some(d, COPIES, 0, 4), device=_device(d), needs=d.choice((False, True)))


def of_inference(d: Draw) -> dict:
    later = d.choice(([], [], ["functional"], ["wrapped"], ["subclass"]))
    return tensor("inference", *some(d, ("view", "view", "clone"), 0, 4), *later, device=_device(d))


def conjugated(d: Draw) -> dict:
    return tensor(*some(d, COPIES, 0, 3), "conj", *some(d, COPIES, 0, 4), dtype="complex64", device=_device(d))


def sparse(d: Draw) -> dict:
    return tensor(*some(d, ("clone",), 0, 4), layout="sparse")


def subclass(d: Draw) -> dict:
    return tensor(*some(d, COPIES, 0, 4), "subclass", device=_device(d), needs=d.choice((False, True)))


def wrapped(d: Draw) -> dict:
    return tensor(*some(d, COPIES, 0, 4), "wrapped", device=_device(d))


def functional(d: Draw) -> dict:
    return tensor(*some(d, COPIES, 0, 4), "functional", device=_device(d))


# ------------------------------------------------------------------------------------------------ the mixtures


def inference_tensors(d: Draw) -> Situation:
    around = some(d, (*GRADIENTS[:4], "function mode", "autocast"), 2, 5)
    return [of_inference(d) for _ in range(d.integer(1, 2))], around


def layouts(d: Draw) -> Situation:
    """Sparse ones or conjugated ones; both together would hide either."""
    kind = d.choice((sparse, conjugated))
    return [kind(d) for _ in range(d.integer(1, 2))], some(d, (*GRADIENTS, *AUTOCAST, "dispatch mode"), 3, 5)


def classes(d: Draw) -> Situation:
    tensors = [d.choice((subclass, wrapped, functional))(d) for _ in range(d.integer(1, 2))]
    return tensors, some(d, (*GRADIENTS, *AUTOCAST, "function mode"), 3, 5)


def gradients(d: Draw) -> Situation:
    return [plain(d) for _ in range(d.integer(1, 2))], some(d, (*GRADIENTS, "function mode", "autocast"), 4, 6)


def autocast(d: Draw) -> Situation:
    return [plain(d) for _ in range(d.integer(0, 2))], some(d, (*AUTOCAST, *AUTOCAST, *GRADIENTS), 4, 6)


def modes(d: Draw) -> Situation:
    tensors = [d.choice((plain, plain, subclass, wrapped))(d) for _ in range(d.integer(0, 2))]
    return tensors, some(d, (*MODES, *MODES, "no_grad", "autocast", "inference_mode(False)"), 3, 6)


def functionalization(d: Draw) -> Situation:
    around = some(d, (*GRADIENTS, *AUTOCAST, *MODES), 3, 5)
    around.insert(d.integer(0, len(around)), "functionalization")  # once: torch refuses to nest it
    return [d.choice((plain, functional))(d) for _ in range(d.integer(0, 2))], around


SUBJECTS: dict[str, tuple[Callable[[Draw], Situation], tuple[type[Rule], ...]]] = {
    "inference tensors": (
        inference_tensors,
        (rules.WrappersStay, rules.ClonesStay, rules.ViewsAreNew, rules.ViewsOfTensorsOnly, rules.FirstTensorOnly),
    ),
    "sparse or conjugated": (
        layouts,
        (rules.SparseIsDense, rules.ConjugateIgnored, rules.ConjugateStays, rules.BothBackends, rules.ModeIgnored),
    ),
    "subclasses and wrappers": (
        classes,
        (rules.EverySubclass, rules.WrapperIgnored, rules.WrapperOnly, rules.FunctionalIgnored, rules.FunctionalOnly),
    ),
    "gradients": (
        gradients,
        (
            rules.NoGradExcludes,
            rules.InferenceModeExcludesBoth,
            rules.FunctionModeCounts,
            rules.EndsWin,
            rules.EndsIgnored,
        ),
    ),
    "autocast": (
        autocast,
        (
            rules.AutocastIncludes,
            moved("Autocast", "ADInplaceOrView"),
            rules.EndsWin,
            rules.EndsIgnored,
            rules.ViewsOfTensorsOnly,
        ),
    ),
    "modes": (
        modes,
        (
            rules.HandlerEndsModes,
            rules.HandlerInItsMode,
            rules.HandlerIgnored,
            rules.FunctionModeCounts,
            rules.EverySubclass,
        ),
    ),
    "functionalization": (
        functionalization,
        (
            rules.HandlerEndsModes,
            rules.HandlerInItsMode,
            rules.AutocastIncludes,
            moved("Python", "Functionalize"),
            rules.WithoutSnapshot,
        ),
    ),
}
TIMES = 7  # each: a table of what has a name and a guess stay right in less than half of the cases


def mixture(d: Draw, subject: str, number: int) -> Situation:
    """The `number`-th of a subject: drawn until one of its misunderstandings gives another answer than the truth."""
    draw, misunderstood = SUBJECTS[subject]
    while True:
        tensors, around = draw(d)
        if misunderstood[number % len(misunderstood)]().met(tensors, around) != Rule().met(tensors, around):
            return tensors, around
