"""How people mistake the types under autocast."""

from autograder.exercise import Mistake
from autograder.exercises.mlp.autocast_rule import TO_FP32, rule

ELEMENTWISE = ("relu", "gelu", "exp", "pow", "sum", "softmax", "layer_norm")
PAIRS = ("add", "mul", "cat")


def _with(**changes):
    return lambda v: {"types": rule(v, **changes)}


def _with_fp32(*operators):
    """These are taken to be on the list of fp32, whatever the device."""
    return lambda v: {"types": rule(v, fp32=(*TO_FP32[v["device"]], *operators))}


def _without_fp32(*operators):
    return lambda v: {"types": rule(v, fp32=tuple(op for op in TO_FP32[v["device"]] if op not in operators))}


def _of_the_other_device(v) -> dict:
    return {"types": rule(v, fp32=TO_FP32["cpu" if v["device"] == "cuda" else "cuda"])}


def _other_low_type(v, dtype) -> dict:
    return {"types": rule(v, dtype=dtype)}


def _gradient_of_the_next(v) -> dict:
    made = rule(v)
    kinds = [kind for kind, _, _ in made]
    return {"types": [[kind, after, w] for (kind, _, w), after in zip(made, [*kinds[1:], kinds[-1]], strict=True)]}


MISTAKES = (
    Mistake(
        "gradient_of_the_next",
        "The gradient that arrives at a result has the type of this result, and not of the one that is made of it: the "
        "operator between them hands back what its input was.",
        answer=_gradient_of_the_next,
    ),
    Mistake(
        "gradients_in_fp32",
        "The gradient of a result has the type of the result, under autocast too: fp32 are gradients of weights that "
        "are held in fp32.",
        answer=_with(gradient=lambda kind, low: "fp32"),
    ),
    Mistake(
        "gradients_low",
        "The gradient of a result has the type of the result: where that is fp32, so is its gradient.",
        answer=_with(gradient=lambda kind, low: low),
    ),
    Mistake(
        "weight_gradients_low",
        "The gradient of a weight has the type in which the weight is held: the cast has a backward step of its own.",
        answer=_with(of_weight=lambda weight, low: low),
    ),
    Mistake(
        "weight_gradients_in_fp32",
        "The gradient of a weight has the type in which the weight is held, and not always fp32.",
        answer=_with(of_weight=lambda weight, low: "fp32"),
    ),
    Mistake(
        "dtype_ignored",
        "The low type is the one that autocast was given: it may be bf16 or fp16.",
        answer=_other_low_type,
        variants=("fp16", "bf16"),
    ),
    Mistake(
        "off_ignored",
        "Inside autocast(enabled=False) nothing is cast: the types of the inputs decide.",
        answer=_with(off=False),
    ),
    Mistake(
        "off_is_fp32",
        "Inside autocast(enabled=False) nothing is cast, to fp32 neither: what comes in the low type stays in it.",
        answer=_with(off_type="fp32"),
    ),
    Mistake(
        "norm_in_fp32",
        "A layer norm is on the fp32 list of CUDA's autocast. The CPU's leaves it in the type of its input.",
        answer=_with_fp32("layer_norm"),
    ),
    Mistake(
        "softmax_in_fp32",
        "The softmax is on the fp32 list of CUDA's autocast. The CPU's leaves it in the type of its input.",
        answer=_with_fp32("softmax"),
    ),
    Mistake(
        "elementwise_in_fp32",
        "exp, pow and sum are on the fp32 list of CUDA's autocast. The CPU's leaves them in the type of their input.",
        answer=_with_fp32("exp", "pow", "sum"),
    ),
    Mistake(
        "list_of_the_other_device",
        "Each device has lists of its own: these are the types of the other one.",
        answer=_of_the_other_device,
    ),
    Mistake(
        "list_incomplete",
        "An operator is missing from CUDA's fp32 list: layer norm, softmax, exp, pow, sum and the losses.",
        answer=lambda v, operator: _without_fp32(operator)(v),
        variants=("sum", "exp", "pow", "softmax", "layer_norm"),
    ),
    Mistake(
        "entropy_low",
        "cross_entropy is on the fp32 list of every device.",
        answer=_without_fp32("cross_entropy"),
    ),
    Mistake(
        "squares_low",
        "mse_loss is on the fp32 list of every device.",
        answer=_without_fp32("mse_loss"),
    ),
    Mistake(
        "products_not_cast",
        "matmul is cast to the low type as a linear layer is: it needs no weight for that.",
        answer=_with(low=("linear",)),
    ),
    Mistake(
        "linear_as_its_input",
        "A linear layer is cast to the low type, whatever comes in.",
        answer=_with(of_linear=lambda x, weight: x),
    ),
    Mistake(
        "linear_as_its_weight",
        "A linear layer is cast to the low type, whatever its weight is held in.",
        answer=_with(of_linear=lambda x, weight: weight),
    ),
    Mistake(
        "first_decides",
        "Two types meet in the wider one: low and fp32 give fp32, bf16 and fp16 too.",
        answer=_with(promoted=lambda a, b: a),
    ),
    Mistake(
        "second_decides",
        "Two types meet in the wider one: low and fp32 give fp32, bf16 and fp16 too.",
        answer=_with(promoted=lambda a, b: b),
    ),
    Mistake(
        "narrower_decides",
        "Two types meet in the wider one: low and fp32 give fp32.",
        answer=_with(promoted=lambda a, b: a if a != "fp32" else b),
    ),
    Mistake(
        "pairs_low",
        "Additions, products by element and cat are on no list: low and fp32 give fp32.",
        answer=_with(more_low=PAIRS),
    ),
    Mistake(
        "all_low",
        "Only linear layers and products of matrices are cast to the low type: the others keep the type that comes in.",
        answer=_with(more_low=(*ELEMENTWISE, *PAIRS)),
    ),
    Mistake(
        "activations_low",
        "Activations are on no list: they keep the type that comes in, fp32 too.",
        answer=_with(more_low=("relu", "gelu")),
    ),
    Mistake(
        "nothing_cast",
        "Under autocast linear layers and products of matrices run in the low type.",
        answer=_with(low=()),
    ),
)
