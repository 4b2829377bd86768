"""How people miscount what is kept for the way back."""

from itertools import accumulate, combinations

from autograder.exercise import Mistake
from autograder.exercises.mlp.kept_bytes import OF_INPUT, OF_RESULT, kept


def _with(**changes):
    return lambda v: {"bytes": kept(v, **changes)}


def _inputs_of(v, names):
    """As if these kept their input, as gelu does."""
    return {"bytes": kept(v, of_input=(*OF_INPUT, *names), of_result=tuple(n for n in OF_RESULT if n not in names))}


SOME = tuple(names for count in range(1, len(OF_RESULT)) for names in combinations(OF_RESULT, count))

MISTAKES = (
    Mistake(
        "x_counted",
        "x was counted: it is alive anyway, whoever keeps it.",
        answer=_with(x_counts=True),
    ),
    Mistake(
        "weights_counted",
        "Weights were counted: they are kept for backward, but they are alive anyway.",
        answer=_with(weights=True),
    ),
    Mistake(
        "gelu_keeps_result",
        "gelu and silu keep their input: their slope cannot be had from their result.",
        answer=_with(of_input=(), of_result=(*OF_RESULT, *OF_INPUT)),
    ),
    Mistake(
        "relu_keeps_input",
        "relu keeps its result: where that is 0, the gradient stops, and the input is not needed.",
        answer=lambda v: _inputs_of(v, ("relu",)),
    ),
    Mistake(
        "softmax_keeps_input",
        "softmax keeps its result: the gradient needs the probabilities and no scores.",
        answer=lambda v: _inputs_of(v, ("softmax",)),
    ),
    Mistake(
        "tanh_keeps_input",
        "tanh keeps its result t: its slope is 1 - t^2.",
        answer=lambda v: _inputs_of(v, ("tanh",)),
    ),
    Mistake(
        "inputs_always",
        "Activations were taken to keep their input: relu, tanh, sigmoid, exp and softmax keep their result, from "
        "which their slope follows.",
        answer=lambda v: _inputs_of(v, OF_RESULT),
    ),
    Mistake(
        "some_keep_input",
        "One or some of relu, tanh, sigmoid, exp and softmax were taken to keep their input: all five keep their "
        "result, from which their slope follows.",
        answer=_inputs_of,
        variants=SOME,
    ),
    Mistake(
        "both_always",
        "Activations were taken to keep input and result: one of the two is enough for each.",
        answer=_with(both=(*OF_INPUT, *OF_RESULT)),
    ),
    Mistake(
        "product_keeps_own_factor",
        "`a * b` keeps b when a needs a gradient, and a when b does: here each was kept for its own.",
        answer=_with(factors="swapped"),
    ),
    Mistake(
        "product_keeps_both",
        "`a * b` keeps b only when a needs a gradient, and a only when b does: here both are always kept.",
        answer=_with(factors="both"),
    ),
    Mistake(
        "linear_keeps_result",
        "A linear layer keeps its input, for the gradient of its weight, and not its result.",
        answer=lambda v, what: {"bytes": kept(v, linear=what)},
        variants=("result", "both"),
    ),
    Mistake(
        "sum_keeps",
        "An addition keeps nothing: its gradient is passed on as it is.",
        answer=_with(sums=True),
    ),
    Mistake(
        "product_keeps_one",
        "A product of two tensors keeps each factor that the gradient of the other needs.",
        answer=_with(factors="own"),
    ),
    Mistake(
        "statistics_missing",
        "A layer norm also keeps mean and rstd of every row, 8 bytes.",
        answer=_with(statistics=0),
    ),
    Mistake(
        "statistics_in_two_bytes",
        "Mean and rstd of a layer norm are fp32, whatever the type of x: 8 bytes a row.",
        answer=lambda v: {"bytes": kept(v, statistics=8 if v["dtype"] == "fp32" else 4)},
    ),
    Mistake(
        "one_statistic",
        "A layer norm keeps two numbers a row, mean and rstd: 8 bytes and not 4.",
        answer=_with(statistics=4),
    ),
    Mistake(
        "mask_as_x",
        "The mask of a dropout was counted in the type of x: it is one byte an element.",
        answer=_with(mask=None),
    ),
    Mistake(
        "mask_of_bits",
        "The mask of a dropout was counted as bits: it is one byte an element.",
        answer=_with(mask=1 / 8),
    ),
    Mistake(
        "mask_missing",
        "A dropout keeps its mask, one byte an element.",
        answer=_with(mask=0.0),
    ),
    Mistake(
        "frozen_ignored",
        "A frozen linear layer needs no gradient of its weight, and so keeps no input.",
        answer=_with(frozen=False),
    ),
    Mistake(
        "frozen_keeps",
        "A frozen linear layer keeps its input here wherever a gradient passes it: dx = dy w needs the weight alone, "
        "and dw, which needs the input, is not made.",
        answer=_with(frozen_keeps=True),
    ),
    Mistake(
        "frozen_stops",
        "A frozen linear layer hands the gradient on: what lies before it may be trained, and then what lies behind it "
        "keeps as usual.",
        answer=_with(stops=True),
    ),
    Mistake(
        "trained_needs_asked",
        "A trained linear layer keeps its input even if that needs no gradient: dw is made of it.",
        answer=_with(linear="asked"),
    ),
    Mistake(
        "gradients_unasked",
        "Where no gradient has to pass, nothing is kept: x has none, or nothing before this layer is trained.",
        answer=_with(unasked=False),
    ),
    Mistake(
        "elements_for_bytes",
        "These are elements: multiply with the bytes of one.",
        answer=_with(item=1),
    ),
    Mistake(
        "always_four_bytes",
        "Every element was taken to have 4 bytes: bf16 and fp16 have 2.",
        answer=_with(item=4),
    ),
    Mistake(
        "batch_lost",
        "With three dimensions the first was left out: every leading dimension counts.",
        answer=_with(rows="last two"),
    ),
    Mistake(
        "first_dimension_only",
        "With three dimensions the second was left out: every leading dimension counts, `math.prod(shape[:-1])`.",
        answer=_with(rows="first"),
    ),
    Mistake(
        "added_up",
        "The numbers are running sums: asked is what each layer adds.",
        answer=lambda v: {"bytes": list(accumulate(kept(v)))},
    ),
    # last: a tensor that is kept in vain and then rightly looks like it where only one layer is wrong
    Mistake(
        "counted_twice",
        "A tensor that two operators keep was counted twice: it is the same memory, and counts where it is kept first.",
        answer=_with(once=False),
    ),
)
