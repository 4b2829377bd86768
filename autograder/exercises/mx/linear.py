"""mx.linear: the linear layers of a model, held as MXINT8.

    swap_linears(model, skip) -> names

Puts a layer of one's own in the place of every `nn.Linear` of the model, and returns their names, each once and in any
order, as `model.named_modules()` has them. The new layer holds the weight as int8 mantissas and uint8 exponents, in
groups of 32 along the inputs as mx.quantize makes them, and the old layer's bias: nothing else, which is 1 + 1/32 bytes
a weight. It takes inputs with any number of leading dimensions, of the type of the model's parameters (fp32 or bf16),
and so are its results. The state of one swapped model can be loaded into another: mantissas and exponents are buffers.

The rows of an input are all its numbers but those of the last dimension, and they decide what runs. Up to 16: a Triton
kernel multiplies with the weight as it is held, and no memory is made that the weight would fill at two bytes a number.
From 128 on: the weight is made whole, once in a call, and one product of the library takes it. Between the two the
answer may choose. The probe sees what ran, by operators and launches. (In bf16 few rows come on a GPU only: the
interpreter multiplies no bf16.)

These stay as they are: a layer whose name is in `skip` or lies below a name in it ("blocks.0" is for "blocks.0.up"
too); a layer of a subclass of `nn.Linear`, whose owner expects more of it; a layer whose weight belongs to a module of
another kind too, such as an embedding. A layer that is used in two places is swapped for one new layer in both; its
name, for `skip` too, is the first.

Right means: names and bytes as they must be, and logits as those of a model whose weights are rounded to the format,
within 2e-5 of the largest (2e-2 in bf16).
"""

from __future__ import annotations

import math
from dataclasses import replace

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise
from autograder.exercises.mx.linear_mistakes import MISTAKES
from autograder.exercises.mx.linear_rules import FEW_ROWS, MANY_ROWS, simulated

LIMITS = {"float32": 2e-5, "bfloat16": 2e-2}  # of the largest logit
WHOLE_ELSEWHERE = "outside of the model, memory is held that a layer's weight fills at two bytes a number"
SPARE = 64  # bytes more than needed that a model may hold: of scalars, say

# -------------------------------------------------------------------------------------------- the comparison


def accept(got, want, args) -> str | None:
    if not isinstance(got, dict) or set(got) != set(want):
        return "what became of the model could not be seen"
    looks = (_names_wrong, _left_wrong, _bytes_wrong, _kept_wrong)
    wrong = next((why for look in looks if (why := look(got, want))), None)
    return wrong or _logits_wrong(got, want, args) or _route_wrong(got, want, args)


def _names_wrong(got, want) -> str | None:
    if not isinstance(got["names"], list):
        return f"the names of the swapped layers should be returned as a list, not {got['names']}"
    if sorted(got["names"]) == sorted(want["names"]):
        return None
    extra = [name for name in got["names"] if name not in want["names"]]
    if extra:
        return f"{extra[0]!r} is among the names, and should not be"
    missing = len(set(want["names"]) - set(got["names"]))
    if not missing:
        return "each name should be returned once"
    return f"{missing} names are missing" if missing > 1 else "a name is missing"


def _left_wrong(got, want) -> str | None:
    extra = [name for name in got["left"] if name not in want["left"]]
    if extra:
        return f"{extra[0]!r} is an nn.Linear still"
    lost = [name for name in want["left"] if name not in got["left"]]
    return f"{lost[0]!r} was swapped, and should stay" if lost else None


def _bytes_wrong(got, want) -> str | None:
    if want["bytes"] <= got["bytes"] <= want["bytes"] + SPARE:
        return None
    more = got["bytes"] - want["bytes"]
    if more < 0:
        return f"the model holds {-more} bytes less than mantissas, exponents and all else need"
    return f"the model holds {more} bytes more than mantissas, exponents and all else need"


def _kept_wrong(got, want) -> str | None:
    if got["dtype"] != want["dtype"]:
        return f"a layer makes {got['dtype']} of {want['dtype']}"
    if got["biases lost"] != want["biases lost"]:
        return "a layer does not hold the bias that the old layer had, as its own parameter"
    if got["integer parameters"]:
        return f"{got['integer parameters']} parameters of the model are integers: an optimizer is given them"
    if got.get("reloaded") != want.get("reloaded"):
        return f"the state of the model, loaded into another one that was swapped too: {got.get('reloaded')}"
    return None


def _logits_wrong(got, want, args) -> str | None:
    here, true = got["logits"], want["logits"]
    if len(here) != len(true):
        return f"the model returns {len(here)} numbers where {len(true)} were expected"
    size = max(map(abs, true))
    off = max(abs(g - w) if g == g else float("inf") for g, w in zip(here, true, strict=True)) / size
    limit = LIMITS[args["call"]["dtype"]]
    if off <= limit:
        return None
    return f"logits are off by {off:.1e} of the largest from those of the rounded weights; the limit is {limit:.0e}"


def _route_wrong(got, want, args) -> str | None:
    """Of the watched layer: how many rows it was given, and what it should not have run, or should have."""
    if not args["watched"]:
        return None
    here, shape = got["ran"], args["call"]["shape"]
    rows = math.prod(shape)
    given = f"of {rows} rows, in leading dimensions {tuple(shape)}," if len(shape) > 1 else f"of {rows} rows"
    if rows <= FEW_ROWS:
        if here["products"]:
            return f"a product {given} was the library's, with the weight made whole"
        if here["whole"]:
            return f"for a product {given} memory was made that the weight would fill at two bytes a number"
        if not here["kernels"]:
            return f"no Triton kernel ran in a product {given}"
        if here["computed"]:
            return f"a product {given} was torch's: it computed with as many numbers as the weight has"
        return WHOLE_ELSEWHERE if here["elsewhere"] else None
    if not here["products"]:
        return f"a product {given} was not the library's"
    if here["products"] > 1:
        return f"a product {given} was made of {here['products']} of the library's"
    if here["kept"] > want["ran"]["kept"]:
        return f"a product {given} took a weight that was not made in the call"
    return WHOLE_ELSEWHERE if here["elsewhere"] else None


# ------------------------------------------------------------------------------------------------- the cases


def _call(
    d: Draw, skip=(), shape=None, dtype="float32", reloaded=False, zeros=False, watched=False, **config
) -> Call:  # fmt: skip
    config = {"width": 2 * d.integer(17, 20), "inner": d.integer(9, 13), **config, "seed": d.integer(0, 2**31)}
    call = {"shape": shape or [2, d.integer(3, 6)], "dtype": dtype, "seed": d.integer(0, 2**31)}
    args = {"config": config | ({"zeros": True} if zeros else {}), "skip": list(skip), "call": call}
    said = [f"width {config['width']}", f"inner {config['inner']}", *(f"skip {one!r}" for one in skip), dtype]
    return Call(args | {"reloaded": reloaded, "watched": watched}, ", ".join(said))


def _route(d: Draw, shape, dtype="float32") -> Call:
    """A layer that is large beside its inputs, so that whole weights are seen; its many-rowed neighbour is skipped."""
    sizes = {"width": 2 * d.integer(130, 140), "inner": d.integer(40, 48)}
    call = _call(d, skip=["blocks.0.down"], shape=shape, dtype=dtype, watched=True, **sizes)
    return replace(call, sizes=f"{call.sizes}, tokens {tuple(shape)}")


CASES = (
    Case("a model", _call),
    Case("one token", lambda d: _call(d, shape=[1])),
    Case("many leading dimensions", lambda d: _call(d, shape=[2, 1, 2, 3])),
    Case("a layer to skip", lambda d: _call(d, skip=["head"])),
    Case("a block to skip", lambda d: _call(d, skip=["blocks.1", "blocks.0.u", "up", "nothing"], layers=2)),
    Case("a layer in two places", lambda d: _call(d, layers=2, twice=True)),
    Case("a tied weight", lambda d: _call(d, tied=True)),
    Case("a subclass", lambda d: _call(d, attention=True)),
    Case("groups of zeros", lambda d: _call(d, zeros=True, width=64)),
    Case("a state to load", lambda d: _call(d, reloaded=True)),
    Case("one row", lambda d: _route(d, [1])),
    Case("few rows", lambda d: _route(d, [FEW_ROWS])),
    Case("few rows of several sequences", lambda d: _route(d, d.choice(([2, 8], [4, 3], [8, 2])))),
    Case("many rows", lambda d: _route(d, [d.integer(MANY_ROWS, 132)])),
    Case("many rows of one sequence", lambda d: _route(d, [1, d.integer(MANY_ROWS, 132)])),
    Case("many short sequences", lambda d: _route(d, [d.integer(MANY_ROWS // 2, 66), 2])),
    Case("bf16", lambda d: _route(d, [2, d.integer(MANY_ROWS // 2, 66)], dtype="bfloat16")),
    Case("bf16, few rows", lambda d: _route(d, [d.integer(1, FEW_ROWS)], dtype="bfloat16"), tiers=ON_GPU),
)

LINEAR = Exercise(
    name="mx.linear",
    entry="swap_linears",
    points=5,
    about="a model's layers swapped, each weight once: few rows are multiplied with it as held, many by the library",
    point=("a model", "a block to skip", "a layer in two places", "few rows", "many rows of one sequence"),
    kind="scenario",
    cases=CASES,
    oracle=lambda v: {"swapped": simulated(v)},
    mistakes=MISTAKES,
    returns=("swapped",),
    accept=accept,
    launches=False,
    probe="autograder.inside.probes.swapping:swapped",
    hides=("course_lib.kernels",),
)
