"""What a model is after its linear layers were swapped, worked out without the submission: the truth, and wrong turns.

Mistakes change one keyword of `simulated`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from autograder.exercises.mx.mxint8 import decode, encode, group_count
from autograder.inside.probes.swapping import held_bytes, make, tokens

GROUP = 32
FEW_ROWS = 16  # up to so many rows a kernel multiplies with the weight as it is held
MANY_ROWS = 128  # from so many on the library does, with a weight made whole once; between the two either is right
Layers = Mapping[str, nn.Linear]


def linears(model: nn.Module, kind=lambda module: type(module) is nn.Linear) -> dict[str, nn.Linear]:
    """A layer in two places is under its first name."""
    return {name: module for name, module in model.named_modules() if kind(module)}


def skipped(name: str, skip: Sequence[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in skip)


def tied(model: nn.Module, layer: nn.Linear) -> bool:
    """Whether a module of another kind has the same weight."""
    others = (module for module in model.modules() if not isinstance(module, nn.Linear))
    return any(one is layer.weight for module in others for one in module.parameters(recurse=False))


def chosen(model: nn.Module, skip: Sequence[str]) -> Layers:
    return {name: m for name, m in linears(model).items() if not skipped(name, skip) and not tied(model, m)}


def rounded(weight: torch.Tensor, group: int = GROUP, **changes) -> torch.Tensor:
    """What a weight is after the format, in float64."""
    made = encode({"x": weight, "group": group}, **changes)
    return decode({name: part.long() for name, part in made.items()} | {"group": group})


def bytes_of(layer: nn.Linear, group: int = GROUP) -> int:
    """Mantissas and exponents; the bias is the layer's own."""
    return layer.out_features * (layer.in_features + group_count(layer.in_features, group))


def simulated(
    v,
    choose: Callable[[nn.Module, Sequence[str]], Layers] = chosen,
    weight: Callable[[torch.Tensor], torch.Tensor] = rounded,
    held: Callable[[nn.Linear], int] = bytes_of,
    named: Callable[[Layers, nn.Module], Sequence[str]] = lambda layers, model: list(layers),
    bias: Callable[[torch.Tensor], torch.Tensor] | None = None,
    **told,
) -> dict:
    """What the probe says of a swap that chooses, rounds and holds in these ways. bias: what becomes of it, if another.

    told: entries that are said in place of what is worked out.
    """
    dtype = getattr(torch, v["call"]["dtype"])
    model = make(v["config"]).to(dtype)
    layers = choose(model, v["skip"])
    gone = {id(layer.weight) for layer in layers.values() if not tied(model, layer)}
    weights = {id(m.weight): m.weight.nbytes for m in layers.values() if id(m.weight) in gone}
    total = held_bytes(model) - sum(weights.values()) + sum(map(held, layers.values()))
    names = [name for name, m in model.named_modules(remove_duplicate=False) if type(m) is nn.Linear]
    places = {id(layer) for layer in layers.values()}
    made = {
        "names": named(layers, model),
        "left": [name for name in names if id(model.get_submodule(name)) not in places],
        "bytes": total,
        "dtype": v["call"]["dtype"],
        "integer parameters": 0,
        "biases lost": [n for n, m in _with_bias(model, names) if bias and id(m) in places],
        "logits": _logits(v, model, layers, weight, bias),
    }
    if v["reloaded"]:
        made["reloaded"] = "equal"
    if v["watched"]:
        made["ran"] = ran(math.prod(v["call"]["shape"]))
    return made | told


def ran(rows: int) -> dict:
    """What the watched layer runs for so many rows: a kernel that takes the weight as it is held, or the library."""
    few = {"whole": False, "products": 0, "kept": 0, "computed": False, "elsewhere": False}
    return few | {"kernels": True} if rows <= FEW_ROWS else few | {"whole": True, "products": 1}


def _with_bias(model: nn.Module, names: Sequence[str]):
    return ((name, m) for name in names if (m := model.get_submodule(name)).bias is not None)


def _logits(v, model: nn.Module, layers: Layers, weight, bias) -> list[float]:
    """In float64, from weights that were rounded in the model's own type."""
    new = {name: weight(layer.weight.detach()) for name, layer in layers.items()}
    model = model.double()
    with torch.no_grad():
        for name, values in new.items():
            layer = model.get_submodule(name)
            layer.weight = nn.Parameter(values.double(), requires_grad=False)
            if bias and layer.bias is not None:
                layer.bias.copy_(bias(layer.bias))
        return model(tokens(v["call"])).flatten().tolist()
