"""Types under autocast: the answers of torch, live or recorded on a GPU, and the rule behind them. A mistake changes
one keyword of the rule.

A model is a list of layers, each a dict with "op"; layer 0 takes x, and a layer with "from" takes a second tensor: the
result of that layer, or x. Every tensor is square, so that anything may follow anything.
"""

import contextlib
import functools
import itertools
from collections.abc import Iterator

import torch
from torch.nn import functional as F

from course_lib import device, results

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = {kind: name for name, kind in TYPES.items()}
SIDE = 8

TO_LOW = ("linear", "matmul")
TO_FP32 = {
    "cpu": ("mse_loss", "cross_entropy"),
    "cuda": ("layer_norm", "softmax", "exp", "pow", "sum", "mse_loss", "cross_entropy"),
}
OPERATORS = {
    "matmul": torch.matmul,
    "add": torch.add,
    "mul": torch.mul,
    "cat": lambda x, other: torch.cat((x, other))[:SIDE],
    "mse_loss": lambda x, other: F.mse_loss(x, other, reduction="none"),
    "relu": torch.relu,
    "gelu": F.gelu,
    "exp": torch.exp,
    "pow": lambda x: torch.pow(x, 2),
    "softmax": lambda x: torch.softmax(x, -1),
    "sum": lambda x: torch.sum(x, -1, keepdim=True).expand(SIDE, SIDE),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(SIDE, dtype=torch.long, device=x.device)),
}


def live(v) -> list[list]:
    """[type of the result, of the gradient that arrives at it, of the gradient of its weight] of every layer."""
    arrived: dict[int, str] = {}
    x = torch.full((SIDE, SIDE), 0.5, dtype=TYPES[v["x"]], device=v["device"], requires_grad=True)
    results, weights = {"x": x}, {}
    with torch.autocast(v["device"], TYPES[v["dtype"]]):
        for number, layer in enumerate(v["layers"]):
            if "weight" in layer:
                shape = (SIDE, SIDE) if layer["op"] == "linear" else (SIDE,)
                kind = TYPES[layer["weight"]]
                weights[number] = torch.full(shape, 0.125, dtype=kind, device=x.device, requires_grad=True)
            off = torch.autocast(v["device"], enabled=False) if layer.get("off") else contextlib.nullcontext()
            given = [results[number - 1 if number else "x"], *([results[layer["from"]]] if "from" in layer else [])]
            with off:
                y = _apply(layer, given, weights.get(number))
            y.register_hook(lambda grad, number=number: arrived.__setitem__(number, NAMES[grad.dtype]))
            results[number] = y
    y.backward(torch.ones_like(y))
    of_weights = {number: NAMES[weight.grad.dtype] for number, weight in weights.items()}
    return [[NAMES[results[n].dtype], arrived[n], of_weights.get(n)] for n in range(len(v["layers"]))]


def _apply(layer: dict, given: list[torch.Tensor], weight) -> torch.Tensor:
    if layer["op"] == "linear":
        return F.linear(given[0], weight)
    if layer["op"] == "layer_norm":
        return F.layer_norm(given[0], (SIDE,), weight)
    if layer["op"] == "to":
        return given[0].to(TYPES[layer["type"]], copy=True)
    y = OPERATORS[layer["op"]](*given)
    return y.clone() if y is given[0] else y


# ----------------------------------------------------------------------------------- one operator at a time, recorded

LAYERS = (
    *({"op": op, "weight": kind} for op in ("linear", "layer_norm") for kind in TYPES),
    *({"op": op} for op in ("relu", "gelu", "exp", "pow", "sum", "softmax", "cross_entropy")),
    *({"op": "to", "type": kind} for kind in TYPES),
)
PAIRS = tuple({"op": op} for op in ("matmul", "add", "mul", "cat", "mse_loss"))


def table(on: str) -> Iterator[dict]:
    """What torch gives for each operator and each type that can come in; nothing where it refuses."""
    every = [(layer, x, None) for layer in LAYERS for x in TYPES]
    every += [(layer, x, other) for layer in PAIRS for x in TYPES for other in TYPES]
    for (layer, x, other), dtype, off in itertools.product(every, ("bf16", "fp16"), (False, True)):
        layer = layer | {"off": off} | ({"from": 0} if other else {})
        before = [{"op": "to", "type": other or x}, {"op": "to", "type": x}]
        with contextlib.suppress(RuntimeError):
            of = live({"device": on, "dtype": dtype, "x": "fp32", "layers": [*before, layer]})
            yield {
                "name": _name(layer, x, other, dtype),
                "result": of[2][0],
                "gradient of x": of[1][1],
                "gradient of other": of[0][1] if other else None,
                "gradient of weight": of[2][2],
            }


def _name(layer: dict, x: str, other: str | None, dtype: str) -> str:
    given = " and ".join(filter(None, (x, other, layer.get("weight"))))
    return f"{layer['op']} {layer.get('type', '')}".strip() + f" of {given}, {dtype}" + ", off" * bool(layer.get("off"))


@functools.cache
def _recorded() -> dict[str, dict]:
    return {row["name"]: row for row in results.load("autocast")["rows"]}


def recorded(v) -> list[list]:
    """As `live`, for "cuda", from the table of one operator at a time."""
    types, arrived, weights, now = {"x": v["x"]}, {}, {}, "x"
    for number, layer in enumerate(v["layers"]):
        row = _recorded()[_name(layer, types[now], types.get(layer.get("from")), v["dtype"])]
        arrived[now] = row["gradient of x"]
        arrived |= {layer["from"]: row["gradient of other"]} if "from" in layer else {}
        types[number], weights[number], now = row["result"], row["gradient of weight"], number
    arrived[now] = types[now]  # the last, which backward was given
    return [[types[n], arrived[n], weights[n]] for n in range(len(v["layers"]))]


def truth(v) -> list[list]:
    return recorded(v) if v["device"] == "cuda" and device.DEVICE != "cuda" else live(v)


# ----------------------------------------------------------------------------------------------------------- the rule


def wider(a: str, b: str) -> str:
    return a if a == b else "fp32"


def rule(
    v, low=TO_LOW, fp32=None, more_low=(), promoted=wider, off=True, off_type=None, gradient=None, of_weight=None,
    of_linear=None, dtype=None,
) -> list[list]:  # fmt: skip
    """low, fp32: the operators on either list. more_low: operators that are taken for low as well. off: whether
    switching off matters. gradient, of_weight: functions of (type of the result or weight, low type). of_linear: a
    function of (x, weight).
    """
    low_type = dtype or v["dtype"]
    fp32 = TO_FP32[v["device"]] if fp32 is None else fp32
    types, answer, now = {"x": v["x"]}, [], "x"
    for number, layer in enumerate(v["layers"]):
        op, kind = layer["op"], types[now]
        if "from" in layer:
            kind = promoted(kind, types[layer["from"]])
        if op == "to":
            kind = layer["type"]
        elif layer.get("off") and off:
            kind = off_type or kind
        elif op == "linear" and of_linear:
            kind = of_linear(types[now], layer["weight"])
        elif op in (*low, *more_low):
            kind = low_type
        elif op in fp32:
            kind = "fp32"
        types[number], now = kind, number
        weight = layer.get("weight")
        answer.append(
            [
                kind,
                gradient(kind, low_type) if gradient else kind,
                of_weight(weight, low_type) if weight and of_weight else weight,
            ]
        )
    return answer
