"""What people get wrong about a meter."""

from __future__ import annotations

from autograder.exercise import Mistake
from autograder.exercises.recorded import apart
from autograder.inside.probes.meters import metered

try:
    import autograder.exercises.dispatch.meter_truth as truth
except ModuleNotFoundError as missing:
    truth = apart(missing)


def _counts(*kinds):
    """FLOPs and bytes of these meters, where they differ from the truth."""

    def answer(v, kind):
        counts, right = (metered(made, v["source"], v["sizes"])[0] for made in (kind, truth.Meter))
        return {"counts": counts} if counts != right else {}

    return {"answer": answer, "variants": kinds}


MISTAKES = (
    Mistake(
        "result_not_returned",
        "`__torch_dispatch__` has to run the operator and return its result.",
        sign=lambda e: e.raised("Unable to cast") or e.raised("NoneType"),
    ),
    Mistake(
        "parts_unseen",
        "In inference mode the mode is asked for `linear`, `matmul` or attention as a whole, and what they call comes "
        "by no more: run `func.decompose(*args, **kwargs)` with the mode active, and take what it gives unless that is "
        "NotImplemented.",
        **_counts(truth.WholeInInferenceMode, truth.PartsUnseen),
    ),
    Mistake(
        "convolution_missed",
        "A convolution multiplies too: 2 FLOP for each element of its result and each weight of one channel of it.",
        **_counts(truth.ConvolutionMissed),
    ),
    Mistake(
        "attention_missed",
        "Attention that is one operator, `aten._scaled_dot_product_...`, holds two products, and nothing was counted "
        "for them.",
        **_counts(truth.AttentionMissed, truth.OnlyProducts),
    ),
    Mistake(
        "backward_products_missed",
        "A backward pass has more products than its forward pass: attention five (the scores again, then four), a "
        "convolution one for each gradient that is asked for.",
        **_counts(truth.AttentionBackwardLikeForward, truth.FourBackward, truth.ConvolutionBackwardOnce),
    ),
    Mistake(
        "unsafe_view_counted",
        "aten._unsafe_view moves nothing: it is a view in all but name.",
        **_counts(truth.UnsafeViewCounted),
    ),
    Mistake(
        "allocations_counted",
        "Memory that is only allocated was counted: nothing is written into it yet.",
        **_counts(truth.AllocationsCounted),
    ),
    Mistake(
        "keywords_missed",
        "Tensors come as keywords too, such as `out=`: look into `kwargs`.",
        **_counts(truth.KeywordsMissed),
    ),
    Mistake(
        "further_results_missed",
        "Operators with several results write all of them: layer norm also its mean and its scale.",
        **_counts(truth.FirstResultOnly, truth.OneTensorResults),
    ),
    Mistake(
        "lists_missed",
        "Tensors in a list of arguments were missed: cat and stack take one, and some operators return several.",
        **_counts(truth.ListsMissed, truth.AllListsMissed),
    ),
    Mistake(
        "in_place_counted_once",
        "An operator in place reads its argument and writes it: count both.",
        **_counts(truth.InPlaceOnce),
    ),
    Mistake(
        "each_tensor_once",
        "A tensor that has two places, as two arguments or as argument and result, was counted once: each one counts.",
        **_counts(truth.EachTensorOnce),
    ),
    Mistake(
        "four_bytes_an_element", "Elements are not always 4 bytes: ask `element_size()`.", **_counts(truth.FourBytes)
    ),
    Mistake(
        "batch_forgotten",
        "A product of batches is one product for each of them, and `bmm` is one.",
        **_counts(truth.BatchForgotten, truth.OnlyTwoDimensions),
    ),
    Mistake(
        "addmm_missed", "A product with a bias goes by the name of addmm, in batches baddbmm.", **_counts(truth.OnlyMm)
    ),
    Mistake(
        "bias_taken_for_a_factor",
        "The first argument of addmm is the bias: the factors are the second and the third.",
        **_counts(truth.WrongOperands),
    ),
    Mistake(
        "views_counted",
        "Views were counted: they move no byte.",
        **_counts(truth.ViewsCounted, truth.OnlyUnsafeViewKnown),
    ),
    Mistake("only_read", "What an operator writes counts too.", **_counts(truth.OnlyRead)),
    Mistake("only_written", "What an operator reads counts too.", **_counts(truth.OnlyWritten)),
    Mistake(
        "whole_memory", "The memory behind a tensor was counted: count its own elements.", **_counts(truth.WholeMemory)
    ),
    Mistake(
        "without_the_two", "A multiplication and an addition are two operations: 2 m n k.", **_counts(truth.WithoutTwo)
    ),
)
