"""mlp.saved: what every operator of a model keeps for its backward pass, in bytes.

    saved(shape, dtype, x_grad, layers) -> list of bytes, one number a layer

x has this shape and type ("fp32", "bf16" or "fp16"), every other tensor the same type; x_grad says whether x requires a
gradient. Layers follow one another, layer 0 takes x, and each is a dict with "op":

    "linear"       "out": columns of the result, "frozen": whether its weight and bias require no gradient
    "layer_norm"   over the last dimension, with weight and bias that are trained; mean and rstd of each row are fp32
    "gelu" "silu" "relu" "tanh" "sigmoid" "exp" "softmax"
    "dropout"      as a GPU has it: the mask is one byte an element
    "add" "mul"    with the result of layer number "from", or with x where "from" is "x"

The model runs in eager mode. Counted is the memory that autograd holds between the passes because of an operator,
beyond what is alive anyway: x, weights and biases count nothing. A tensor that several operators keep is counted where
it is kept first. An operator keeps nothing when no gradient has to pass it.
"""

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.mlp.kept_bytes import kept
from autograder.exercises.mlp.saved_mistakes import MISTAKES
from autograder.exercises.telling import telling


def linear(out: int, frozen=False) -> dict:
    return {"op": "linear", "out": out, "frozen": frozen}


def _call(d: Draw, layers: list, dtype=None, x_grad=False, dims=2) -> Call:
    """layers: dicts, names of operators, or (name, from)."""
    named = [_layer(layer) for layer in layers]
    shape = [d.integer(3, 40) for _ in range(dims - 1)] + [d.integer(33, 900)]
    dtype = dtype or d.choice(("fp32", "bf16", "fp16"))
    said = ", ".join(layer["op"] for layer in named)
    args = {"shape": shape, "dtype": dtype, "x_grad": x_grad, "layers": named}
    return Call(args, f"{' x '.join(map(str, shape))}, {dtype}: {said}")


def _layer(layer) -> dict:
    if isinstance(layer, tuple):
        return {"op": layer[0], "from": layer[1]}
    return layer if isinstance(layer, dict) else {"op": layer}


def _sizes(d: Draw) -> tuple[int, int]:
    return d.rng.sample(range(50, 3000), 2)


def _mlp(d: Draw, activation: str, **options) -> Call:
    n, out = _sizes(d)
    return _call(d, [linear(n), activation, linear(out)], **options)


def _block(d: Draw, **options) -> Call:
    """Norm, MLP, dropout, residual."""
    n, width = _sizes(d)
    layers = [linear(width), "layer_norm", linear(n), "gelu", linear(width), "dropout", ("add", 0), "layer_norm"]
    return _call(d, layers, **options)


def _gated(d: Draw) -> Call:
    """silu(x w1) times (x w2) needs both; here the second factor is what the first was made of."""
    n, out = _sizes(d)
    return _call(d, [linear(n), "silu", ("mul", 0), linear(out)])


def _frozen(d: Draw) -> Call:
    n, out = _sizes(d)
    return _call(d, [linear(n), "gelu", linear(out, frozen=True), "gelu", linear(n, frozen=True), "tanh"])


def _nothing_before(d: Draw) -> Call:
    """A frozen beginning: nobody asks for gradients until the first trained layer."""
    n, out = _sizes(d)
    return _call(d, [linear(n, frozen=True), "gelu", "dropout", linear(out, frozen=True), "relu", linear(n), "gelu"])


def _only_x(d: Draw) -> Call:
    n, out = _sizes(d)
    return _call(d, [linear(n, frozen=True), "silu", "softmax", linear(out, frozen=True)], x_grad=True)


def _half_asked(d: Draw, other: int) -> Call:
    """One factor has a gradient, the other has none; number 1 is kept already, number 0 is not."""
    n, _ = _sizes(d)
    layers = [linear(n, frozen=True), "sigmoid", linear(n), ("mul", other), "gelu"]
    return _call(d, layers)


CASES = (
    Case("linear, gelu, linear", lambda d: _mlp(d, "gelu", dtype="bf16")),
    Case("linear, silu, linear", lambda d: _mlp(d, "silu")),
    Case("linear, relu, linear", lambda d: _mlp(d, "relu")),
    Case("linear, tanh, linear", lambda d: _mlp(d, "tanh")),
    Case("fp32", lambda d: _mlp(d, "gelu", dtype="fp32")),
    Case("x with a gradient", lambda d: _call(d, ["gelu", linear(_sizes(d)[0]), "exp"], x_grad=True)),
    Case("x with a gradient, kept", lambda d: _call(d, ["sigmoid", "layer_norm", "softmax"], "fp32", x_grad=True)),
    Case("x without a gradient", lambda d: _call(d, ["gelu", "tanh", linear(_sizes(d)[0]), "sigmoid"])),
    Case("softmax", lambda d: _call(d, [linear(_sizes(d)[0]), "softmax", linear(_sizes(d)[1]), "softmax", "dropout"])),
    Case("one after another", lambda d: _call(d, [linear(_sizes(d)[0]), "tanh", "relu", "sigmoid", "softmax", "exp"])),
    Case("a layer norm", lambda d: _call(d, [linear(_sizes(d)[0]), "layer_norm", linear(_sizes(d)[1])], dtype="bf16")),
    Case("dropout", lambda d: _call(d, [linear(_sizes(d)[0]), "dropout", "gelu", "dropout"], dtype="fp32")),
    Case("a residual", lambda d: _call(d, [linear(300), "gelu", linear(300), ("add", 0), "tanh"])),
    Case("a gate", _gated),
    Case("a factor without a gradient", lambda d: _half_asked(d, 1)),
    Case("a factor without a gradient, not kept before", lambda d: _half_asked(d, 0)),
    Case("a product", lambda d: _call(d, [linear(_sizes(d)[0]), "dropout", "dropout", ("mul", 1)])),
    Case("three dimensions", lambda d: _block(d, dims=3)),
    Case("a block", lambda d: _block(d, dtype="bf16")),
    Case("frozen layers", _frozen),
    Case("a frozen beginning", _nothing_before),
    Case("only x has a gradient", _only_x),
)


def accept(got, want, args) -> str | None:
    if not isinstance(got, (list, tuple)) or len(got) != len(want):
        return f"expected a list of {len(want)} numbers, one a layer; got {got!r:.60}"
    for number, (mine, true, layer) in enumerate(zip(got, want, args["layers"], strict=True)):
        if isinstance(mine, bool) or not isinstance(mine, (int, float)):
            return f"layer {number}: expected a number of bytes, got {type(mine).__name__}"
        if mine != true:
            return f"layer {number}, {layer['op']}: got {mine:,} bytes, {'more' if mine < true else 'fewer'} are kept"
    return None


SAVED = Exercise(
    name="mlp.saved",
    entry="saved",
    points=4,
    about="the bytes that are kept for the backward pass",
    point=("linear, gelu, linear", "one after another", "frozen layers"),
    kind="scenario",
    cases=telling(CASES, lambda v: {"bytes": kept(v)}, MISTAKES, accept),
    oracle=lambda v: {"bytes": kept(v)},
    mistakes=MISTAKES,
    returns=("bytes",),
    accept=accept,
    hides=("course_lib.memory",),
    launches=False,
)
