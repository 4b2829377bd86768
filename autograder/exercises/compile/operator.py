"""compile.operator: wrap a kernel as an operator of torch.library.

    make_operator(name) -> the operator

`name` is like "space::gate3". The operator that is registered under it computes `gate(x, y) = x * sigmoid(y)` for two
tensors of one shape and one floating-point type, of any strides, with the kernel `course_lib.given_kernels.gate_into
(x, y, out)`, which writes into contiguous memory and which no compiler can look into. The result is a new, contiguous
tensor of that shape and type. Inputs stay as they are.

Asked for, besides: a rule for fake tensors (shape, strides and type of the result, without data), and one for the
gradients of x and y, so that the operator passes `torch.library.opcheck` and lies in a compiled graph without a break.

Right means: the numbers are the kernel's; result, gradients and the result under torch.compile are x * sigmoid(y)'s to
the rounding of the type, one graph, no memory shared with an input, no input changed, and every test of opcheck passes;
a mode sees one operator, and autograd uses the rule for it.
"""

from __future__ import annotations

import torch

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.compile.operator_mistakes import MISTAKES, report
from autograder.exercises.number_lists import differ
from autograder.exercises.places import counted
from autograder.inside.probes import operators

LIMIT = {"float64": 1e-12, "float32": 1e-5}  # of the largest number

# -------------------------------------------------------------------------------------------- the comparison


def accept(got, want, args) -> str | None:
    if not isinstance(got, dict) or set(got) != set(want):
        return "the operator could not be looked at"
    limit = LIMIT[args["call"]["dtype"]]
    looks = (_result_wrong, _gradients_wrong, _compiled_wrong, _opcheck_wrong, _fake_wrong, _below_wrong)
    return next(
        (why for name, look in zip(want, looks, strict=True) if (why := look(got[name], want[name], limit))), None
    )


def _result_wrong(got, want, limit) -> str | None:
    if not isinstance(got, dict) or set(got) != set(want):
        return f"calling the operator raised {got!s:.200}"
    if got["inputs_changed"]:
        return "the operator changed an input"
    if got["shares_memory"]:
        return "the result shares memory with an input"
    if got["kernel_ran"] is not True:
        return "the numbers of the result are not those that gate_into wrote"
    if got["dtype"] != want["dtype"]:
        return f"the result is {got['dtype']}, and the inputs are not"
    if _far(got["values"], want["values"], limit):
        return "the result is not x * sigmoid(y)"
    if got["strides"] != want["strides"]:
        return f"the result has strides {got['strides']}: it is not contiguous"
    return None


def _gradients_wrong(got, want, limit) -> str | None:
    if not isinstance(got, list) or len(got) != len(want):
        return f"the backward pass raised {got!s:.200}"
    for name, here, true in zip("xy", got, want, strict=True):
        if (here is None) != (true is None):
            return f"the gradient of {name} is {'missing' if here is None else 'there, and was not asked for'}"
        if true is not None and _far(here, true, limit):
            return f"the gradient of {name} is wrong"
    return None


def _compiled_wrong(got, want, limit) -> str | None:
    if not isinstance(got, dict) or set(got) != set(want):
        return f"under torch.compile the operator raised {got!s:.200}"
    if got["graphs"] != want["graphs"]:
        return f"under torch.compile the operator lies in {counted(got['graphs'], 'graph')} where one was asked for"
    return "under torch.compile the result is another one" if _far(got["values"], want["values"], limit) else None


def _opcheck_wrong(got, want, limit) -> str | None:
    if not isinstance(got, dict) or not set(want) <= set(got):
        return f"opcheck raised {got!s:.200}"
    return next((f"opcheck, {name}: {said!s:.200}" for name, said in sorted(got.items()) if said != "SUCCESS"), None)


def _fake_wrong(got, want, limit) -> str | None:
    if not isinstance(got, dict) or set(got) != set(want):
        return f"for fake tensors the operator raised {got!s:.200}"
    different = [name for name in want if got[name] != want[name]]
    return next((f"the fake result has the {name} {got[name]}, the real one {want[name]}" for name in different), None)


def _below_wrong(got, want, limit) -> str | None:
    if not isinstance(got, dict) or set(got) != set(want):
        return f"under a mode the operator raised {got!s:.200}"
    if got["seen"] != want["seen"]:
        return f"a mode sees the operator {counted(got['seen'], 'time')} in a call, where it is one operator"
    return None if got["rule"] is True else "autograd goes by the parts of the operator and has no rule for it"


def _far(got, want, limit: float) -> bool:
    """limit: of the largest number."""
    return differ(got, want, limit * max(map(abs, want), default=1.0))


# ------------------------------------------------------------------------------------------------- the cases


def _call(d: Draw, layouts, needs_grad=(True, True), dtype="float64", shape=None) -> Call:
    shape = shape or [d.integer(2, 5), d.integer(2, 5)]
    seed = d.integer(0, 2**31)
    call = {"shape": shape, "dtype": dtype, "layouts": list(layouts), "needs_grad": list(needs_grad), "seed": seed}
    return Call({"call": call}, f"{shape} {dtype}, x {layouts[0]}, y {layouts[1]}")


PLAIN = ("contiguous", "contiguous")
CASES = (
    Case("contiguous", lambda d: _call(d, PLAIN)),
    Case("transposed", lambda d: _call(d, ("transposed", "transposed"))),
    Case("strided", lambda d: _call(d, ("every second", "contiguous"))),
    Case(
        "three dimensions", lambda d: _call(d, ("transposed", "every second"), shape=[d.integer(2, 3) for _ in "123"])
    ),
    Case("fp32", lambda d: _call(d, PLAIN, dtype="float32")),
    Case("only x needs a gradient", lambda d: _call(d, PLAIN, (True, False))),
    Case("only y needs a gradient", lambda d: _call(d, ("contiguous", "transposed"), (False, True))),
    Case("no gradient", lambda d: _call(d, ("transposed", "contiguous"), (False, False))),
)


def _truth(v) -> dict:
    x, y = operators.tensors(v["call"])
    out = (x * torch.sigmoid(y)).contiguous()
    if out.requires_grad:
        out.sin().sum().backward()
    return {"report": report(out.detach(), x.grad, y.grad)}


OPERATOR = Exercise(
    name="compile.operator",
    entry="make_operator",
    points=6,
    about="a kernel as an operator that the compiler knows: its fake, its strides, its derivative",
    point=("contiguous", "transposed"),
    kind="scenario",
    cases=CASES,
    oracle=_truth,
    mistakes=MISTAKES,
    returns=("report",),
    accept=accept,
    launches=False,
    probe="autograder.inside.probes.operators:inspected",
)
