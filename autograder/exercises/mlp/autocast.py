"""mlp.autocast: a rule for the type of every result and of every gradient of a small model under autocast.

    autocast(device, dtype, x, layers) -> list of [result, gradient, weight], one a layer

The model runs under torch.autocast(device, dtype); device is "cpu" or "cuda", dtype "bf16" or "fp16", and x the type of
the input: "fp32", "bf16" or "fp16". Layers follow one another, layer 0 takes x, and each is a dict with "op":

    "linear" "layer_norm"                          "weight": the type in which its weight is held
    "relu" "gelu" "exp" "pow" "softmax" "sum"
    "matmul" "add" "mul" "cat" "mse_loss"          of this and the result of layer number "from", or of x: "from" is "x"
    "cross_entropy"                                with fixed targets
    "to"                                           x.to(type), "type": the type

No case concatenates what the CPU's autocast refuses: its cat takes a tensor in the low type that it does not use only
behind one in fp32. A layer with "off": True runs inside torch.autocast(device, enabled=False). Asked for are, of every
layer, the type of its result, the type of the gradient that arrives at this result, and the type of the gradient of its
weight, None where it has no weight. Types are "fp32", "bf16" and "fp16".

The truth is what torch does when the answer is judged; for "cuda" on a machine without one, what it did on an H200,
recorded an operator at a time (`python -m benchmarks autocast`). The rule itself has no torch.
"""

from functools import partial

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.mlp.autocast_mistakes import MISTAKES
from autograder.exercises.mlp.autocast_rule import TYPES, rule, truth
from autograder.exercises.telling import telling

LOW = ("bf16", "fp16")
PLAIN = ("relu", "gelu", "exp", "pow", "softmax", "sum")
PAIRS = ("matmul", "add", "mul", "mse_loss", "cat")
PARTS = ("result", "gradient that arrives at it", "gradient of its weight")


def linear(weight="fp32", **more) -> dict:
    return {"op": "linear", "weight": weight, **more}


def norm(**more) -> dict:
    return {"op": "layer_norm", "weight": "fp32", **more}


def _layer(layer) -> dict:
    if isinstance(layer, tuple):
        return {"op": layer[0], "from": layer[1]}
    return layer if isinstance(layer, dict) else {"op": layer}


def _call(d: Draw, *layers, x="fp32", dtype=None, device="cpu") -> Call:
    """layers: dicts, names of operators, or (name, from)."""
    named, dtype = [_layer(layer) for layer in layers], dtype or d.choice(LOW)
    said = ", ".join(layer["op"] + " (off)" * bool(layer.get("off")) for layer in named)
    return Call({"device": device, "dtype": dtype, "x": x, "layers": named}, f"{device}, {dtype}, x {x}: {said}")


def _to(kind: str) -> dict:
    return {"op": "to", "type": kind}


def _low_x(d: Draw) -> Call:
    dtype = d.choice(LOW)
    return _call(d, "gelu", norm(), linear(), "softmax", ("add", "x"), x=dtype, dtype=dtype)


def _other_low_x(d: Draw) -> Call:
    """x is in the low type that autocast does not use."""
    dtype, other = d.rng.sample(LOW, 2)
    return _call(d, "relu", linear(), "relu", ("add", "x"), x=other, dtype=dtype)


def _low_weights(d: Draw) -> Call:
    dtype, other = d.rng.sample(LOW, 2)
    return _call(d, linear(dtype), "gelu", linear(other), "relu", linear(), dtype=dtype)


def _cast_up(d: Draw) -> Call:
    return _call(d, linear(), _to("fp32"), d.choice(("relu", "gelu")), norm(), linear(), "gelu")


def _cast_down(d: Draw) -> Call:
    dtype = d.choice(LOW)
    return _call(d, _to(dtype), "relu", "sum", ("mul", "x"), "exp", dtype=dtype)


def _off(d: Draw) -> Call:
    """Types of the inputs decide: here fp32, cast up before."""
    return _call(d, linear(), _to("fp32"), linear(off=True), {"op": "gelu", "off": True}, linear(), "relu")


def _off_and_low(d: Draw) -> Call:
    """Switching off raises nothing to fp32: what comes in the low type stays in it."""
    dtype = d.choice(LOW)
    layers = linear(), {"op": "relu", "off": True}, linear(dtype, off=True), {"op": "cross_entropy", "off": True}
    return _call(d, *layers, dtype=dtype)


def _off_product(d: Draw) -> Call:
    return _call(d, "relu", {"op": "matmul", "from": "x", "off": True}, ("matmul", "x"), {"op": "softmax", "off": True})


def _toy(d: Draw, **options) -> Call:
    return _call(d, linear(), "relu", norm(), linear(), "cross_entropy", **options)


def _attention(d: Draw, **options) -> Call:
    layers = linear(), ("matmul", "x"), "softmax", ("matmul", 0), linear(), ("add", "x")
    return _call(d, *layers, **options)


# More than half of the cases are mixtures: the others have one or two variants, and a table of those, made at home, is
# to earn nothing. Each mixture is drawn until one mistake shows, so that this mistake costs points beyond the case that
# is made for it. Mistakes that few mixtures show are left out: these would be drawn for seconds.
SHOWN = {
    "cpu": """gradient_of_the_next weight_gradients_low weight_gradients_in_fp32 elementwise_in_fp32 norm_in_fp32
        squares_low activations_low first_decides second_decides narrower_decides""".split(),
    "cuda": """gradient_of_the_next weight_gradients_low linear_as_its_weight products_not_cast list_incomplete
        squares_low pairs_low off_ignored off_is_fp32""".split(),
}
MIXTURES = {"cpu": 16, "cuda": 14}


def _anything(d: Draw, device: str) -> Call:
    """Anything after anything, in any types."""
    layers: list = []
    for number in range(d.integer(5, 8)):
        pair = {"op": d.choice(PAIRS[:4]), "from": d.choice(("x", *range(number)))}
        plain = {"op": d.choice(PLAIN)} | ({} if d.integer(0, 5) else {"off": True})
        layer = d.choice((plain, plain, pair, linear(d.choice(TYPES)), linear(d.choice(TYPES)), norm()))
        layers.append(layer if d.integer(0, 6) else _to(d.choice(TYPES)))
    return _call(d, *layers, x=d.choice(TYPES), device=device)


def _mixture(d: Draw, device: str, number: int) -> Call:
    """The `number`-th of a device: drawn until its mistake gives another answer than the truth."""
    mistake = next(m for m in MISTAKES if m.name == SHOWN[device][number % len(SHOWN[device])])
    while True:
        call = _anything(d, device)
        answers = [mistake.answer(call.args, *variant) for variant in [(v,) for v in mistake.variants] or [()]]
        if any(answer["types"] != rule(call.args) for answer in answers):
            return call


def _mixtures(device: str, name: str) -> list[Case]:
    numbers = range(MIXTURES[device])
    return [Case(name.format(n + 1), partial(_mixture, device=device, number=n)) for n in numbers]


CASES = (
    Case("the toy of the report", _toy),
    Case("fp16", lambda d: _call(d, linear(), "gelu", linear(), dtype="fp16")),
    Case("bf16", lambda d: _call(d, linear(), "gelu", linear(), dtype="bf16")),
    Case("nothing to cast", lambda d: _call(d, "relu", "gelu", "exp", ("mul", "x"))),
    Case("a softmax", lambda d: _call(d, linear(), "softmax", linear())),
    Case("a norm first", lambda d: _call(d, norm(), linear(), norm(), "gelu")),
    Case("exp, pow and sum", lambda d: _call(d, linear(), "exp", "pow", "sum", linear())),
    Case("x in the low type", _low_x),
    Case("x in the other low type", _other_low_x),
    Case("weights in low types", _low_weights),
    Case("a residual", lambda d: _call(d, norm(), linear(), ("add", "x"), norm(), linear(), ("add", 2))),
    Case("a gate", lambda d: _call(d, linear(), "relu", linear(), ("mul", 1), ("mul", "x"))),
    Case("x second", lambda d: _call(d, linear(), ("mul", "x"), "relu", linear(), ("mul", 2))),
    Case("the wider one first", lambda d: _call(d, linear(), _to("fp32"), ("mul", 0), "relu", ("add", 0))),
    Case("cat", lambda d: _call(d, linear(), ("cat", "x"), "gelu", linear(), ("cat", 0))),
    Case("a product of x with itself", lambda d: _call(d, "relu", ("matmul", "x"), "gelu")),
    Case("attention", _attention),
    Case("a loss of two", lambda d: _call(d, linear(), ("mse_loss", "x"), "relu", linear(), ("mse_loss", 0))),
    Case("cast up", _cast_up),
    Case("cast down", _cast_down),
    Case("switched off", _off),
    Case("switched off, in the low type", _off_and_low),
    Case("a product, switched off", _off_product),
    *_mixtures("cpu", "mixture {}"),
    Case("the toy, on CUDA", lambda d: _toy(d, device="cuda")),
    Case("attention, on CUDA", lambda d: _attention(d, device="cuda")),
    Case(
        "exp, pow and sum, on CUDA",
        lambda d: _call(d, linear(), "sum", linear(), "exp", linear(), "pow", device="cuda"),
    ),
    *_mixtures("cuda", "mixture {}, on CUDA"),
)


def accept(got, want, args) -> str | None:
    if not isinstance(got, (list, tuple)) or len(got) != len(want):
        return f"expected a list of {len(want)}, one entry a layer; got {got!r:.60}"
    for number, (mine, true, layer) in enumerate(zip(got, want, args["layers"], strict=True)):
        if not isinstance(mine, (list, tuple)) or len(mine) != 3:
            return f"layer {number}: expected [result, gradient, weight], got {mine!r:.60}"
        for one, right, part in zip(mine, true, PARTS, strict=True):
            if one != right or type(one) is not type(right):
                return f"layer {number}, {layer['op']}: the type of the {part} is not {one!r:.20}"
    return None


AUTOCAST = Exercise(
    name="mlp.autocast",
    entry="autocast",
    points=4,
    about="the type in which each operator runs, on each device, and that of each gradient",
    point=("fp16", "a softmax", "a norm first", "the toy, on CUDA"),
    kind="scenario",
    cases=telling(CASES, lambda v: {"types": rule(v)}, MISTAKES, accept),
    oracle=lambda v: {"types": truth(v)},
    mistakes=MISTAKES,
    returns=("types",),
    accept=accept,
    hides=("torch", "triton"),
    launches=False,
)
