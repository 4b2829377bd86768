"""What a right operator looks like from all sides, and what a wrong one shows."""

from __future__ import annotations

import torch

from autograder.exercise import Mistake
from autograder.inside.probes.operators import described

TESTS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def report(out: torch.Tensor, x_grad: torch.Tensor | None, y_grad: torch.Tensor | None) -> dict:
    """What is seen of an operator with this result, as autograder.inside.probes.operators reports it."""
    numbers = out.reshape(-1).to(torch.float64).tolist()
    gradients = [None if g is None else g.reshape(-1).to(torch.float64).tolist() for g in (x_grad, y_grad)]
    return {
        "result": {
            "values": numbers,
            "dtype": str(out.dtype).removeprefix("torch."),
            "strides": list(out.stride()),
            "shares_memory": False,
            "inputs_changed": False,
            "kernel_ran": True,
        },
        "gradients": gradients,
        "compiled": {"graphs": 1, "values": out.to(torch.float64).sin().reshape(-1).tolist()},
        "opcheck": dict.fromkeys(TESTS, "SUCCESS"),
        "fake": described(out),
        "below": {"seen": 1, "rule": True},
    }


# ------------------------------------------------------------------------------------------- what was reported


def _reports(e, *cases: str) -> list[tuple[dict, dict]]:
    """(what came, what was wanted) of these cases, or of all."""
    ran = [t for t in e.tried if t.outcome.error is None and (not cases or t.case.name in cases)]
    return [
        (t.outcome.outputs["report"], t.want["report"]) for t in ran if isinstance(t.outcome.outputs["report"], dict)
    ]


def _result_has(e, name: str) -> bool:
    return any(isinstance(r["result"], dict) and r["result"][name] for r, _ in _reports(e))


def _kernel_missed(e) -> bool:
    return any(isinstance(r["result"], dict) and not r["result"]["kernel_ran"] for r, _ in _reports(e))


def _says(e, *words: str) -> bool:
    """Some look at the operator raised, or opcheck found, all of these words."""
    said = [part for r, _ in _reports(e) for part in (r["result"], r["gradients"], r["compiled"], r["opcheck"])]
    texts = [text for part in said for text in (part.values() if isinstance(part, dict) else [part])]
    return any(all(word in text for word in words) for text in texts if isinstance(text, str))


def _gradient_as(e, formula) -> bool:
    """The gradients of every case where one is wrong are those of another formula."""
    wrong = [t for t in e.failing if t.outcome.error is None]
    return bool(wrong) and all(_is_gradient(t, formula) for t in wrong)


def _is_gradient(t, formula) -> bool:
    from autograder.inside.probes.operators import tensors

    got = t.outcome.outputs["report"]["gradients"]
    if not isinstance(got, list):
        return False
    x, y = (value.detach().double() for value in tensors(t.args["call"]))
    g = torch.cos(x * torch.sigmoid(y))
    pairs = zip(got, formula(g, x, y, torch.sigmoid(y)), strict=True)
    return all(
        here is None or torch.allclose(torch.tensor(here).view(x.shape).double(), there, atol=1e-5)
        for here, there in pairs
    )


FORMULAS = {  # gradients of x and y, given that of the result
    "swapped": lambda g, x, y, s: (g * x * s * (1 - s), g * s),
    "without (1 - s)": lambda g, x, y, s: (g * s, g * x * s),
    "without x": lambda g, x, y, s: (g * s, g * s * (1 - s)),
    "sigmoid of x": lambda g, x, y, s: (g * torch.sigmoid(x), g * x * s * (1 - s)),
    "without g": lambda g, x, y, s: (s, x * s * (1 - s)),
    "ones for g": lambda g, x, y, s: (torch.ones_like(g) * s, torch.ones_like(g) * x * s * (1 - s)),
}


def _forgets_g(e) -> bool:
    return _gradient_as(e, FORMULAS["without g"])


def _other_formula(e) -> bool:
    return any(_gradient_as(e, FORMULAS[name]) for name in ("swapped", "without (1 - s)", "without x", "sigmoid of x"))


def _only_where_strides_differ(e) -> bool:
    return e.passed("contiguous") and e.failed("transposed")


def _type_differs(e) -> bool:
    return any(isinstance(r["result"], dict) and r["result"]["dtype"] != w["result"]["dtype"] for r, w in _reports(e))


def _fake_stride(e) -> bool:
    fakes = [(r["fake"], w["fake"]) for r, w in _reports(e) if isinstance(r.get("fake"), dict)]
    differ = any(fake["strides"] != true["strides"] for fake, true in fakes)
    return _only_where_strides_differ(e) and (_says(e, "Stride mismatch") or (differ and not _result_strides(e)))


def _result_strides(e) -> bool:
    right = [isinstance(r["result"], dict) and r["result"]["strides"] != w["result"]["strides"] for r, w in _reports(e)]
    refused = _says(e, "gate_into writes contiguous memory")
    return _only_where_strides_differ(e) and (refused or any(right))


def _gradient_missing(e) -> bool:
    """No gradient at all: for autograd the operator is not there."""
    return (
        _says(e, "does not require grad") or _says(e, "no autograd formula") or _says(e, "Autograd was not registered")
    )


def _in_parts(e) -> bool:
    """Right for those who only look at numbers, and no operator for those who look below."""
    belows = [r["below"] for r, _ in _reports(e)]
    return any(isinstance(below, dict) and (below["seen"] != 1 or not below["rule"]) for below in belows)


MISTAKES = (
    Mistake(
        "inputs_declared_as_written",
        "`mutates_args` names an input, and this operator writes into none: `mutates_args=()`. An operator that says "
        "that it writes gets no gradient.",
        sign=lambda e: e.raised("non-functional operator"),
    ),
    Mistake(
        "input_changed",
        "The operator writes into an input and does not say so (`mutates_args`): a compiler may reorder the reads of "
        "it. Write into a new tensor.",
        sign=lambda e: _result_has(e, "inputs_changed"),
    ),
    Mistake(
        "alias_returned",
        "The result shares memory with an input: return a new tensor.",
        sign=lambda e: _result_has(e, "shares_memory") or _says(e, "must not also be an input"),
    ),
    Mistake(
        "no_fake",
        "There is no rule for fake tensors: register one with `register_fake`. Without it no compiler knows the shape "
        "of the result.",
        sign=lambda e: _says(e, "no fake impl") or _says(e, "register_fake"),
    ),
    Mistake(
        "fake_runs_the_kernel",
        "The rule for fake tensors touches data, and fake tensors have none: it should only make an empty tensor.",
        sign=lambda e: (
            _says(e, "FakeTensor", "numpy")
            or _says(e, ".numpy()")
            or _says(e, "data-dependent")
            or _says(e, "Cannot access data pointer")
            or _says(e, "fake", "gate_into")
        ),
    ),
    Mistake(
        "fake_with_other_strides",
        "The fake result has the strides of the input, the real one is contiguous. `empty_like` keeps strides; "
        "`x.new_empty(x.shape)` does not.",
        sign=_fake_stride,
    ),
    Mistake(
        "result_with_another_type",
        "The result has another type than x: give `dtype=x.dtype` to the tensor that gate_into writes.",
        sign=_type_differs,
    ),
    Mistake(
        "fake_with_another_type",
        "The fake result has another type than the real one: take it from x.",
        sign=lambda e: _says(e, "mismatched tensor metadata", "Dtypes"),
    ),
    Mistake(
        "fake_with_another_shape",
        "The fake result has another shape than the real one.",
        sign=lambda e: _says(e, "mismatched tensor metadata", "Shapes"),
    ),
    Mistake(
        "result_not_contiguous",
        "The result has the strides of an input: it should be contiguous, whatever came. `empty_like` keeps strides; "
        "`torch.empty(x.shape, ...)` does not.",
        sign=_result_strides,
    ),
    Mistake(
        "no_gradient",
        "Autograd does not know the operator: register its backward pass with `register_autograd`.",
        sign=_gradient_missing,
    ),
    Mistake(
        "incoming_gradient_forgotten",
        "The backward pass gives the derivative alone: multiply it with the gradient of the result.",
        sign=_forgets_g,
    ),
    Mistake(
        "derivative_wrong",
        "A derivative is wrong or missing. With s = sigmoid(y): that of x is s, that of y is x * s * (1 - s); backward "
        "returns both, in this order.",
        sign=_other_formula,
    ),
    Mistake(
        "kernel_not_called",
        "The operator computes with operators of torch: autograd and the compiler know those, and a kernel of your own "
        "they do not. Call `gate_into`.",
        sign=_kernel_missed,
    ),
    Mistake(
        "in_parts",
        "The operator is a name for several of torch's: autograd, modes and the compiler see those and not yours. "
        "Give it a kernel for the CPU, and rules for fake tensors and gradients.",
        sign=_in_parts,
    ),
    Mistake(
        "not_an_operator",
        "What was returned is not an operator. `torch.library.custom_op(name, mutates_args=())` makes one of a "
        "function: return what it gives, not the function, and do not forget to return it.",
        sign=lambda e: e.raised("expected the operator that torch.library registered"),
    ),
    Mistake(
        "another_name",
        "The operator has another name than the one that is given: register it under `name`.",
        sign=lambda e: e.raised("no operator is registered under the name"),
    ),
)
