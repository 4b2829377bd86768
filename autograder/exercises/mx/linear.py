"""mx.linear: the linear layers of a model, held as MXINT8.

    swap_linears(model, skip) -> names

Puts a layer of one's own in the place of every `nn.Linear` of the model, and returns their names, each once and in any
order, as `model.named_modules()` has them. The new layer holds the weight as int8 mantissas and uint8 exponents, in
groups of 32 along the inputs as mx.quantize makes them, and the old layer's bias: nothing else, which is 1 + 1/32 bytes
a weight. It takes inputs with any number of leading dimensions, of the type of the model's parameters (fp32 or bf16),
and so are its results. The state of one swapped model can be loaded into another: mantissas and exponents are buffers.

These stay as they are: a layer whose name is in `skip` or lies below a name in it ("blocks.0" is for "blocks.0.up"
too); a layer of a subclass of `nn.Linear`, whose owner expects more of it; a layer whose weight belongs to a module of
another kind too, such as an embedding. A layer that is used in two places is swapped for one new layer in both; its
name, for `skip` too, is the first.

Right means: names and bytes as they must be, and logits as those of a model whose weights are rounded to the format,
within 2e-5 of the largest (2e-2 in bf16).
"""

from __future__ import annotations

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.mx.linear_mistakes import MISTAKES
from autograder.exercises.mx.linear_rules import simulated

LIMITS = {"float32": 2e-5, "bfloat16": 2e-2}  # of the largest logit
SPARE = 64  # bytes more than needed that a model may hold: of scalars, say

# -------------------------------------------------------------------------------------------- the comparison


def accept(got, want, args) -> str | None:
    if not isinstance(got, dict) or set(got) != set(want):
        return "what became of the model could not be seen"
    looks = (_names_wrong, _left_wrong, _bytes_wrong, _kept_wrong)
    return next((why for look in looks if (why := look(got, want))), None) or _logits_wrong(got, want, args)


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


# ------------------------------------------------------------------------------------------------- the cases


def _call(d: Draw, skip=(), shape=None, dtype="float32", reloaded=False, zeros=False, **config) -> Call:
    config = {"width": 2 * d.integer(17, 20), "inner": d.integer(9, 13), **config, "seed": d.integer(0, 2**31)}
    call = {"shape": shape or [2, d.integer(3, 6)], "dtype": dtype, "seed": d.integer(0, 2**31)}
    args = {"config": config | ({"zeros": True} if zeros else {}), "skip": list(skip), "call": call}
    said = [f"width {config['width']}", f"inner {config['inner']}", *(f"skip {one!r}" for one in skip), dtype]
    return Call(args | {"reloaded": reloaded}, ", ".join(said))


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
    Case("bf16", lambda d: _call(d, dtype="bfloat16")),
)

LINEAR = Exercise(
    name="mx.linear",
    entry="swap_linears",
    points=5,
    about="the layers of a model swapped, each weight once, and nothing else",
    point=("a model", "a block to skip", "a layer in two places"),
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
