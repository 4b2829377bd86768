"""What people get wrong about a tensor that carries a scale."""

from __future__ import annotations

from autograder.exercise import Mistake
from autograder.exercises.recorded import apart
from autograder.inside.probes.scaling import worked_out

try:
    import autograder.exercises.dispatch.subclass_truth as truth
except ModuleNotFoundError as missing:
    truth = apart(missing)


def _tensors(*kinds):
    return {"answer": lambda v, kind: {"results": worked_out(kind, **v)}, "variants": kinds}


def _asked_for_ever(e) -> bool:
    """Already where a number scales."""
    asked = [t for t in e.failing if t.case.name == "numbers" and isinstance(t.outcome.outputs.get("results"), list)]
    return any(isinstance(one, dict) and one.get("raised") == "RecursionError" for t in asked for one in _results(t))


def _results(t) -> list:
    return t.outcome.outputs["results"]


MISTAKES = (
    Mistake(
        "never_unwrapped",
        "The handler called the operator with a wrapper among its arguments, and was asked again, for ever: hand on "
        "what the wrappers hold, or held * scale.",
        sign=_asked_for_ever,
    ),
    Mistake(
        "type_forgotten",
        "The wrapper has another type than what it holds: hand the type on to `_make_wrapper_subclass`.",
        **_tensors(truth.TypeForgotten),
    ),
    Mistake(
        "strides_forgotten",
        "The wrapper has other strides than what it holds: hand them on to `_make_wrapper_subclass`.",
        **_tensors(truth.StridesForgotten),
    ),
    Mistake(
        "rounding_forgotten",
        "A division that rounds was taken for one that only scales: `aten.div` has several overloads, and "
        "`aten.div.Tensor_mode` is another operator.",
        **_tensors(truth.EveryDivision),
    ),
    Mistake(
        "division_multiplies",
        "A division by a number multiplied the scale.",
        **_tensors(truth.DivisionMultiplies),
    ),
    Mistake(
        "lists_missed",
        "A tensor inside a list was not unwrapped, as `torch.cat` gets them: `torch.utils._pytree.tree_map` goes into "
        "lists too.",
        **_tensors(truth.ListsMissed),
    ),
    Mistake(
        "first_argument_only",
        "Only the first argument was unwrapped: the wrapper can be any of them.",
        **_tensors(truth.FirstArgumentOnly),
    ),
    Mistake(
        "keywords_dropped",
        "The keyword arguments of the operator were not handed on.",
        **_tensors(truth.KeywordsDropped),
    ),
    Mistake(
        "parts_not_wrapped",
        "A view that gives several tensors at once, `split` or `unbind`, gave them without the wrapper.",
        **_tensors(truth.PartsForgotten),
    ),
    Mistake(
        "batched_products_computed",
        "The product of two stacks of matrices, `aten.bmm`, was multiplied out: it keeps its scales as `aten.mm` does.",
        **_tensors(truth.BatchedComputed),
    ),
    Mistake(
        "unsafe_view_computed",
        "`aten._unsafe_view`, which `reshape` and `matmul` end with, is a view too, though `func.is_view` denies it.",
        **_tensors(truth.UnsafeViewComputed),
    ),
    Mistake(
        "clone_computed",
        "A clone lost its scale: it should hold a copy and keep the scale.",
        **_tensors(truth.CloneComputed),
    ),
    Mistake(
        "views_computed",
        "A view was multiplied out: it should share the memory that is held and keep the scale.",
        **_tensors(truth.ViewsComputed, truth.NothingKept),
    ),
    Mistake(
        "scale_lost_in_views",
        "A view forgot the scale.",
        **_tensors(truth.ScaleLostInViews, truth.HeldOfViews),
    ),
    Mistake(
        "part_scaled",
        "`x[0].mul_(n)` scales a part of x, and one scale cannot say so: raise TypeError where a view would be scaled "
        "in place.",
        **_tensors(truth.BaseScaledByPart, truth.PartScaledByItself),
    ),
    Mistake(
        "views_left_behind",
        "A view that was made before `x.mul_(n)` still has the old scale: what is written into a tensor shows in its "
        "views, so a view should ask what it is a view of.",
        **_tensors(truth.ViewsLeftBehind, truth.EachForItself),
    ),
    Mistake(
        "writes_into_held",
        "An operator in place worked on what is held, as if there were no scale: raise TypeError.",
        **_tensors(truth.WritesIntoHeld),
    ),
    Mistake(
        "every_write_refused",
        "A write into an ordinary tensor was refused because a wrapper was among the arguments: only a wrapper cannot "
        "be written.",
        **_tensors(truth.EveryWriteRefused),
    ),
    Mistake(
        "in_place_gives_another",
        "`x.mul_(n)` gave a new wrapper and left x as it was: change the scale of x and return x.",
        **_tensors(truth.InPlaceAnew),
    ),
    Mistake(
        "writes_lost",
        "An operator wrote into the product held * scale, a copy that nobody sees: raise TypeError, and for `mul_` and "
        "`div_` by a number change the scale.",
        **_tensors(truth.WritesLost, truth.EveryWriteLost),
    ),
    Mistake(
        "in_place_refused",
        "`x.mul_(n)` was refused, but it writes nothing that is held: it changes the scale.",
        **_tensors(truth.InPlaceRefused),
    ),
    Mistake(
        "factors_alike",
        "A tensor went into the scale, where only numbers belong: its product with a wrapper is an ordinary tensor.",
        sign=lambda e: any("only one element tensors" in t.why for t in e.failing),
    ),
    Mistake(
        "factors_alike",
        "An elementwise product with a tensor was treated as one with a number: only numbers go into the scale.",
        **_tensors(truth.FactorsAlike),
    ),
    Mistake(
        "numbers_twice",
        "A number went into the scale and into what is held.",
        **_tensors(truth.NumbersTwice),
    ),
    Mistake(
        "numbers_into_held",
        "A number was multiplied into what is held: change the scale and share the memory.",
        **_tensors(truth.NumbersIntoHeld),
    ),
    Mistake(
        "numbers_computed",
        "A product with a number was multiplied out: change the scale and share the memory.",
        **_tensors(truth.NumbersComputed),
    ),
    Mistake(
        "products_computed",
        "A matrix product was multiplied out before: multiply what is held, and the scales.",
        **_tensors(truth.ProductsComputed),
    ),
    Mistake(
        "scales_of_products",
        "The scale of a matrix product is the product of the scales of both factors; an ordinary tensor has 1.",
        **_tensors(truth.LeftScaleOnly, truth.SecondScaleForgotten, truth.ScalesAdded),
    ),
    Mistake(
        "unwrapped_by_itself",
        "To unwrap, the wrapper itself was multiplied, which gives a wrapper again: multiply what it holds.",
        **_tensors(truth.UnwrappedByItself),
    ),
    Mistake(
        "computed_on_held",
        "What is held was used without its scale.",
        **_tensors(truth.ComputedOnHeld),
    ),
    Mistake(
        "wrapped_again",
        "The result of any other operator is an ordinary tensor: no scale belongs to it any more.",
        **_tensors(truth.WrappedAgain, truth.HeldWrappedAgain),
    ),
)
