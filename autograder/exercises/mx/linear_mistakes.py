"""How people swap the linear layers of a model wrongly."""

from __future__ import annotations

import torch
from torch import nn

from autograder.exercise import Mistake
from autograder.exercises.mx.linear_rules import (
    GROUP,
    bytes_of,
    chosen,
    linears,
    rounded,
    simulated,
    skipped,
    tied,
)
from autograder.inside.probes.swapping import make


def _with(**changes):
    return lambda v: {"swapped": simulated(v, **changes)}


def _holding(more):
    """More bytes a layer."""
    return _with(held=lambda layer: bytes_of(layer) + more(layer))


def _kept_whole(v, bytes_a_weight):
    """Beside mantissas and exponents the whole weight; None: in the model's own type."""
    own = 2 if v["call"]["dtype"] == "bfloat16" else 4
    made = simulated(v, held=lambda layer: bytes_of(layer) + layer.weight.numel() * (bytes_a_weight or own))
    return {"swapped": made | {"ran": made["ran"] | {"kept": 1}} if v["watched"] else made}


def _top_only(model, skip):
    return {name: layer for name, layer in chosen(model, skip).items() if "." not in name}


def _exact_only(model, skip):
    return {name: m for name, m in linears(model).items() if name not in skip and not tied(model, m)}


SKIPS = {
    "the start": lambda name, one: name.startswith(one),
    "any part": lambda name, one: one in name,
    "any word": lambda name, one: one in name.split(".") or skipped(name, [one]),
}


def _skip_more(v, how: str):
    """More is skipped than `skip` names."""

    def choose(model, skip):
        every = chosen(model, ())
        return {name: m for name, m in every.items() if not any(SKIPS[how](name, one) for one in skip)}

    return {"swapped": simulated(v, choose=choose)}


def _tied_too(model, skip):
    return {name: m for name, m in linears(model).items() if not skipped(name, skip)}


def _tied_bytes(v):
    """The embedding keeps the weight that the head gave away."""
    return {"swapped": simulated(v, choose=_tied_too)} if v["config"].get("tied") else {}


def _layer_inside(e) -> bool:
    """Below each new layer, the old one."""
    seen = [(t.outcome.outputs.get("swapped"), t.want["swapped"]) for t in e.failing]
    return bool(seen) and all(isinstance(got, dict) and _below(got["left"], want["names"]) for got, want in seen)


def _below(left, swapped) -> bool:
    return any(name.startswith(f"{one}.") for name in left for one in swapped)


def _said(text: str):
    """Every failing case says so."""
    return lambda e: bool(e.failing) and all(text in t.why for t in e.failing)


def _one_for_each(v, both_names: bool):
    """A new layer in each of the two places."""
    if not v["config"].get("twice"):
        return {}
    made = simulated(v)
    inner, width = v["config"]["inner"], v["config"]["width"]
    extra = bytes_of(nn.Linear(width, inner, device="meta"))
    names = ["blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "head"] if both_names else made["names"]
    return {"swapped": made | {"bytes": made["bytes"] + extra, "names": names}}


def _both_names(v):
    """One new layer in both places, and both of their names."""
    if not v["config"].get("twice"):
        return {}
    made = simulated(v)
    return {"swapped": made | {"names": [*made["names"], "blocks.1.up"]}}


def _in_place(v):
    """Weights are rounded where they lie, and the layers stay."""
    made = simulated(v)
    none = simulated(v, choose=lambda model, skip: {})
    return {"swapped": none | {"logits": made["logits"], "names": made["names"]}}


def _mixed_up(e, case: str) -> bool:
    """Rows that lie along one dimension are counted rightly, and those of this case are not."""
    failing = {t.case.name for t in e.failing}
    return case in failing and failing <= {case, "bf16"}


def _last_word(layers, model):
    return [name.rpartition(".")[2] for name in layers]


def _down(weight):
    return rounded(weight.T.contiguous()).T


def _of_row(bits_of_scale: bool):
    """One scale a row: a power of two, or any number."""

    def weight(w):
        if bits_of_scale:
            return rounded(w, group=1 << (w.shape[1] - 1).bit_length())
        scale = w.double().abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
        return (w.double() / scale).round() * scale

    return weight


def _cut_off(weight):
    return rounded(weight, mantissa=lambda y: y.trunc())


def _without_bias(v, held: bool):
    made = simulated(v, bias=torch.zeros_like)
    if held:
        return {"swapped": made | {"biases lost": []}}
    layers = chosen(make(v["config"]).to(getattr(torch, v["call"]["dtype"])), v["skip"])
    lost = sum(layer.bias.nbytes for layer in layers.values() if layer.bias is not None)
    return {"swapped": made | {"bytes": made["bytes"] - lost}}


def _routes(*cases: str, said: str = ""):
    """These cases fail, and no others; each failing one says so."""

    def sign(e) -> bool:
        failing = {t.case.name for t in e.failing}
        return bool(failing) and failing <= set(cases) and cases[0] in failing and all(said in t.why for t in e.failing)

    return sign


FEW = ("few rows", "few rows of several sequences", "one row", "bf16, few rows")
MANY = ("many rows", "many rows of one sequence", "many short sequences", "bf16")

MISTAKES = (
    Mistake(
        "always_whole",
        "The weight is made whole for few rows too. That moves 5 bytes a weight in place of 1: multiply up to 16 rows "
        "with the weight as it is held, by a kernel such as `gemv` of exercise 7.3.",
        sign=_routes(*FEW, said="the library's, with the weight made whole"),
    ),
    Mistake(
        "widened_for_few_rows",
        "For few rows memory is made that the whole weight would fill, if only as wide integers: give the kernel the "
        "mantissas as they are held, and convert in registers.",
        sign=_routes(*FEW, said="memory was made"),
    ),
    Mistake(
        "without_a_kernel",
        "Few rows are multiplied without a Triton kernel: group by group, each operator reads and writes memory of its "
        "own. Call `gemv` of exercise 7.3.",
        sign=_routes(*FEW, said="no Triton kernel ran"),
    ),
    Mistake(
        "always_as_held",
        "A kernel of your own multiplies many rows too. From 128 rows on make the weight whole once, by `dequantize`, "
        "and give it to the library: arithmetic sets the time there, and the conversion is paid once.",
        sign=_routes(*MANY, said="was not the library's"),
    ),
    Mistake(
        "rows_of_one_dimension",
        "One leading dimension is taken for the rows. Rows are the product of all of them, `x.numel() // x.shape[-1]`: "
        "a sequence of 128 tokens has 128 rows, whatever the batch.",
        sign=lambda e: _mixed_up(e, "many rows of one sequence") or _mixed_up(e, "many short sequences"),
    ),
    Mistake(
        "whole_in_pieces",
        "Many rows are multiplied in pieces: the weight is read again for each. Give the library all rows at once.",
        sign=_routes(*MANY, said="of the library's"),
    ),
    Mistake(
        "whole_elsewhere",
        "A whole weight is kept outside of the layer, where it takes the memory that the format was to save: make it "
        "anew in each call.",
        sign=_routes(*MANY, said="not made in the call"),
    ),
    Mistake(
        "skip_exact_only",
        "`skip` may name what layers lie below: 'blocks.1' is for 'blocks.1.up' too.",
        answer=_with(choose=_exact_only),
    ),
    Mistake(
        "skip_more",
        "Layers were left that `skip` does not name: its names begin at the model, and end at a dot or with the name. "
        "'blocks.0.u' and 'up' are not for 'blocks.0.up'.",
        answer=_skip_more,
        variants=tuple(SKIPS),
    ),
    Mistake(
        "skip_ignored",
        "Layers that `skip` names were swapped.",
        answer=lambda v: {"swapped": simulated(v | {"skip": []})},
    ),
    Mistake(
        "top_only",
        "Only layers of the model itself were swapped: those inside its modules have to be found too, by walking over "
        "`named_modules()`.",
        answer=_with(choose=_top_only),
    ),
    Mistake(
        "tied_weight_swapped",
        "A layer was swapped whose weight the embedding holds too: nothing is saved, it is held twice.",
        answer=_tied_bytes,
    ),
    Mistake(
        "subclass_swapped",
        "A layer of a subclass of nn.Linear was swapped: its owner reads its weight, and finds none. `isinstance` is "
        "true for subclasses, `type(module) is nn.Linear` is not.",
        sign=lambda e: e.failed_only("a subclass"),
    ),
    Mistake(
        "second_place_left",
        "A layer that is used in two places was swapped in one of them: put the same new layer into both.",
        sign=lambda e: e.failed_only("a layer in two places") and _said("is an nn.Linear still")(e),
    ),
    Mistake(
        "one_for_each_place",
        "A layer that is used in two places became two layers: keep in a dictionary what each old layer became.",
        answer=_one_for_each,
        variants=(False, True),
    ),
    Mistake(
        "named_twice",
        "A layer in two places is named once, as `named_modules()` does.",
        answer=_both_names,
    ),
    Mistake(
        "layer_kept",
        "The new layer keeps the old one inside, with its whole weight: drop it.",
        sign=_layer_inside,
    ),
    Mistake(
        "weight_kept",
        "The old weight, or a whole one made from the mantissas, is held beside them: that takes more memory than "
        "before. Make it anew in every call.",
        answer=_kept_whole,
        variants=(None, 8, 4, 2),
    ),
    Mistake(
        "wide_mantissas",
        "Mantissas take more than a byte: hold them as int8.",
        answer=lambda v, more: _holding(lambda layer: layer.weight.numel() * more)(v),
        variants=(1, 3, 7),
    ),
    Mistake(
        "padding_held",
        "Mantissas are held with the zeros that filled the last group of each row: cut them off before they are "
        "registered.",
        answer=_holding(lambda layer: layer.out_features * (-layer.in_features % GROUP)),
    ),
    Mistake(
        "wide_exponents",
        "Exponents, or scales made from them, take more than a byte: hold uint8.",
        answer=lambda v, more: _holding(lambda layer: (bytes_of(layer) - layer.weight.numel()) * more)(v),
        variants=(1, 3, 7),
    ),
    Mistake(
        "rounded_in_place",
        "The layers are nn.Linear still, with rounded weights: nothing is saved. Put another module in their place.",
        answer=_in_place,
    ),
    Mistake(
        "bias_lost",
        "The new layers add no bias.",
        answer=_without_bias,
        variants=(False, True),
    ),
    Mistake(
        "bias_copied",
        "The bias is not the old layer's own parameter but a copy, so whoever holds the old one changes nothing.",
        answer=lambda v: {"swapped": simulated(v, bias=lambda b: b)},
    ),
    Mistake(
        "last_word_of_names",
        "Names are those within a parent: `named_modules()` gives the whole path.",
        answer=_with(named=_last_word),
    ),
    Mistake(
        "no_names",
        "Nothing is returned: the names of the swapped layers are asked for.",
        sign=_said("returned as a list"),
    ),
    Mistake(
        "groups_along_outputs",
        "Groups lie along the outputs: a weight is (outputs, inputs), and groups are adjacent inputs.",
        answer=lambda v: {"swapped": simulated(v, weight=_down) | _bytes_down(v)},
    ),
    Mistake(
        "one_scale_a_row",
        "One scale a row of the weight, in place of one for each 32 elements.",
        answer=lambda v, power: {"swapped": simulated(v, weight=_of_row(power)) | _bytes_of_rows(v, power)},
        variants=(True, False),
    ),
    Mistake(
        "other_groups",
        "Groups have another length than 32.",
        answer=lambda v, group: _with(weight=lambda w: rounded(w, group), held=lambda m: bytes_of(m, group))(v),
        variants=(16, 64, 8),
    ),
    Mistake(
        "cut_off",
        "Mantissas are cut off and not rounded.",
        answer=_with(weight=_cut_off),
    ),
    Mistake(
        "other_type",
        "The result has another type than the input: convert at the end.",
        sign=lambda e: _said("a layer makes")(e) or e.raised("same dtype"),
    ),
    Mistake(
        "two_dimensions_only",
        "The layer takes matrices only: fold the leading dimensions into one, and unfold the result.",
        sign=lambda e: e.raised("too many values to unpack") or e.raised("2D") or e.raised("2-D"),
    ),
    Mistake(
        "state_lost",
        "The state of the model cannot be loaded into another one: mantissas and exponents are no buffers. "
        "`register_buffer` makes them part of `state_dict()`, and of `model.to(device)`.",
        sign=lambda e: e.failed_only("a state to load"),
    ),
    Mistake(
        "parameters_for_buffers",
        "Mantissas and exponents are parameters: whoever trains the model hands them to an optimizer. Nothing learns "
        "here, so they are buffers.",
        sign=_said("parameters of the model are integers"),
    ),
)


def _bytes_down(v) -> dict:
    def held(layer):
        return layer.in_features * (layer.out_features + -(-layer.out_features // GROUP))

    return {"bytes": simulated(v, held=held)["bytes"]}


def _bytes_of_rows(v, power: bool) -> dict:
    """A byte a row, or a number in the type of the weight."""
    size = 1 if power else 2 if v["call"]["dtype"] == "bfloat16" else 4
    return {"bytes": simulated(v, held=lambda layer: layer.weight.numel() + layer.out_features * size)["bytes"]}
