"""dispatch.custom: an operator, one kernel for each key.

    register(library)

`library` is a `torch.library.Library` of a new namespace, `library.ns`. Asked for: define in it the operator
`cap(Tensor x, float limit) -> Tensor`, limit * tanh(x / limit) for a floating-point tensor of any strides and a
positive number, and register a kernel for each of three keys:

    CPU        computes with `course_lib.given_kernels.cap_into(x, limit, out)`, which writes into contiguous
               memory and of which autograd knows nothing. The result is a new contiguous tensor; x stays as it is.
    Meta       the same shape, strides and type, without data.
    Autograd   makes the result differentiable, as often as one likes, and leaves the computation to the keys below:
               whatever is below Autograd, a mode or another backend, sees `cap` and not its parts.

Right means all of this, in no_grad and inference mode too, and that the call leaves the keys that the thread includes
and excludes as they were.
"""

from __future__ import annotations

import torch

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.dispatch.custom_mistakes import MISTAKES
from autograder.exercises.number_lists import differ
from autograder.inside.probes import registering

LIMIT = {"float64": 1e-11, "float32": 2e-5}  # of the largest number
ASKED = ("CPU", "Meta", "Autograd")

# -------------------------------------------------------------------------------------------- the comparison


def accept(got, want, args) -> str | None:
    if not isinstance(got, dict) or set(got) != set(want):
        return "the operator could not be looked at"
    limit = LIMIT[args["call"]["dtype"]]
    looks = (_registered_wrong, _result_wrong, _meta_wrong, _gradients_wrong, _seen_wrong, _inside_wrong)
    return next((why for look in looks if (why := look(got, want, limit))), None)


def _registered_wrong(got, want, limit) -> str | None:
    has = got["registered"] if isinstance(got["registered"], list) else []
    if missing := [key for key in ASKED if key not in has]:
        return f"no kernel is registered for {missing[0]}"
    surplus = [str(key)[:40] for key in has if key not in ASKED]
    return f"a kernel is registered for {surplus[0]} too" if surplus else None


def _result_wrong(got, want, limit) -> str | None:
    got, want = got["result"], want["result"]
    if not isinstance(got, dict) or set(got) != set(want):
        return f"calling the operator raised {got!s:.200}"
    if got["input_changed"]:
        return "the operator changed its input"
    if got["shares_memory"]:
        return "the result shares memory with the input"
    if got["kernel_ran"] is not True:
        return "the numbers of the result are not those that cap_into wrote"
    for name in ("dtype", "device", "strides"):
        if got[name] != want[name]:
            return f"the result has {name} {got[name]!s:.40}"
    return "the result is not limit * tanh(x / limit)" if _far(got["values"], want["values"], limit) else None


def _meta_wrong(got, want, limit) -> str | None:
    got, want = got["meta"], want["meta"]
    if not isinstance(got, dict) or set(got) != set(want):
        return f"on meta the operator raised {got!s:.200}"
    wrong = [name for name in want if got[name] != want[name]]
    return f"on meta the result has {wrong[0]} {got[wrong[0]]!s:.40}" if wrong else None


def _gradients_wrong(got, want, limit) -> str | None:
    for name, told in (("gradients", "the gradient"), ("second", "the gradient of the gradient")):
        if not isinstance(got[name], list):
            return f"{told}: {got[name]!s:.200}"
        if _far(got[name], want[name], 10 * limit):
            return f"{told} is wrong"
    return None


def _seen_wrong(got, want, limit) -> str | None:
    seen = got["seen"]
    if not isinstance(seen, list):
        return f"under a mode the operator raised {seen!s:.200}"
    if seen.count("cap") != 1:
        return f"a mode sees {', '.join(map(str, seen))[:80] or 'nothing'}"
    return None if got["rule"] is True else "autograd goes by the parts of `cap`, and not by the kernel for Autograd"


def _inside_wrong(got, want, limit) -> str | None:
    for name, place in (("no_grad", "no_grad"), ("inference", "inference mode")):
        here, true = got[name], want[name]
        if not isinstance(here, dict) or set(here) != set(true):
            return f"in {place} the operator raised {here!s:.200}"
        if here["requires_grad"] is not False:
            return f"in {place} the result requires a gradient"
        if _far(here["values"], true["values"], limit):
            return f"in {place} the result is another one"
    return None if got["state_kept"] is True else "after the calls the thread excludes other keys than before"


def _far(got, want, limit: float) -> bool:
    """limit: of the largest number."""
    return differ(got, want, limit * max([1.0, *map(abs, want)]))


# ------------------------------------------------------------------------------------------------- the cases


def _call(d: Draw, layout="contiguous", dtype="float64", shape=None, by_name=False) -> Call:
    shape = [d.integer(2, 5), d.integer(2, 5)] if shape is None else shape
    call = {"shape": shape, "dtype": dtype, "layout": layout, "limit": round(d.number(1.5, 4.0), 3)}
    call |= {"by_name": by_name, "seed": d.integer(0, 2**31)}
    return Call({"call": call}, f"{shape} {dtype}, {layout}")


CASES = (
    Case("contiguous", _call),
    Case("transposed", lambda d: _call(d, "transposed")),
    Case("every second", lambda d: _call(d, "every second")),
    Case("three dimensions", lambda d: _call(d, "transposed", shape=[d.integer(2, 4) for _ in "123"])),
    Case("fp32", lambda d: _call(d, dtype="float32")),
    Case("fp32 transposed", lambda d: _call(d, "transposed", dtype="float32")),
    Case("one number", lambda d: _call(d, shape=[1])),
    Case("no numbers", lambda d: _call(d, shape=[d.integer(1, 3), 0])),
    Case("limit by name", lambda d: _call(d, by_name=True)),
)


def _truth(v) -> dict:
    call = v["call"]
    x, limit = registering.tensor(call).requires_grad_(), call["limit"]
    out = (limit * torch.tanh(x / limit)).contiguous()
    (first,) = torch.autograd.grad(out.sin().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * first).sum(), x)
    return {"report": report(out.detach(), first.detach(), second)}


def report(out: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> dict:
    """What is seen of an operator with this result, as autograder.inside.probes.registering reports it."""
    values, first, second = (t.reshape(-1).to(torch.float64).tolist() for t in (out, first, second))
    facts = {"strides": list(out.stride()), "dtype": str(out.dtype).removeprefix("torch.")}
    alone = {"values": values, "requires_grad": False}
    return {
        "result": {
            "values": values,
            "device": "cpu",
            "shares_memory": False,
            "input_changed": False,
            "kernel_ran": True,
        }
        | facts,
        "meta": {"shape": list(out.shape), "device": "meta", "requires_grad": True} | facts,
        "gradients": first,
        "second": second,
        "seen": ["cap"],
        "rule": True,
        "no_grad": alone,
        "inference": alone,
        "registered": list(ASKED),
        "state_kept": True,
    }


CUSTOM = Exercise(
    name="dispatch.custom",
    entry="register",
    points=6,
    about="kernels at their keys: device, fake and gradient",
    point=("contiguous", "transposed"),
    kind="scenario",
    cases=CASES,
    oracle=_truth,
    mistakes=MISTAKES,
    returns=("report",),
    accept=accept,
    launches=False,
    probe="autograder.inside.probes.registering:looked_at",
)
