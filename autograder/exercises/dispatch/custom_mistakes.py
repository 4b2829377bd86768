"""What a wrong operator shows, and what it is called."""

from __future__ import annotations

import torch

from autograder.exercise import Mistake

COMPOSITES = {"CompositeImplicitAutograd", "CompositeExplicitAutograd"}

# ------------------------------------------------------------------------------------------- what was reported


def _tried(e) -> list:
    """Cases with a report in which every look is what it should be, or the text of what was raised."""
    return [t for t in e.tried if t.outcome.error is None and _is_report(t.outcome.outputs["report"], t.want["report"])]


def _is_report(got, want) -> bool:
    if not isinstance(got, dict) or set(got) != set(want):
        return False
    return all(isinstance(got[look], str) or _alike(got[look], want[look]) for look in want)


def _alike(got, want) -> bool:
    if isinstance(want, dict):
        return isinstance(got, dict) and set(got) == set(want)
    if isinstance(want, list):
        kinds = str if want and isinstance(want[0], str) else int | float
        return isinstance(got, list) and all(isinstance(one, kinds) for one in got)
    return isinstance(got, type(want))


def _reports(e) -> list[dict]:
    return [t.outcome.outputs["report"] for t in _tried(e)]


def _some(e, look: str, what) -> bool:
    """In some case what was seen has it; `what` of a look that raised is not asked."""
    return any(not isinstance(r[look], str) and what(r[look]) for r in _reports(e))


def _raised(e, look: str, *words: str) -> bool:
    return any(isinstance(r[look], str) and all(word in r[look] for word in words) for r in _reports(e))


def _lacks(e, key: str) -> bool:
    return _some(e, "registered", lambda keys: key not in keys)


def _composite(e) -> bool:
    return _some(e, "registered", lambda keys: bool(COMPOSITES & set(keys)))


def _meta_differs(e, name: str) -> bool:
    """A fact about the result on meta is wrong in some case."""
    pairs = [(t.outcome.outputs["report"]["meta"], t.want["report"]["meta"]) for t in _tried(e)]
    return any(isinstance(got, dict) and got[name] != want[name] for got, want in pairs)


def _not_contiguous(e) -> bool:
    wrong = [(t.outcome.outputs["report"]["result"], t.want["report"]["result"]) for t in _tried(e)]
    return _raised(e, "result", "cap_into writes contiguous memory") or any(
        isinstance(got, dict) and got["strides"] != want["strides"] for got, want in wrong
    )


def _computed_above(e) -> bool:
    return _some(e, "seen", lambda names: "cap" not in names) or _some(e, "rule", lambda rule: not rule)


# --------------------------------------------------------------------------------------------- of the gradients


def _derivatives(e, name: str) -> list[tuple]:
    """x, limit, the gradient of the result, what came and what was wanted, of every case that has numbers."""
    from autograder.inside.probes.registering import tensor

    found = []
    for t in _tried(e):
        got, want = t.outcome.outputs["report"][name], torch.tensor(t.want["report"][name], dtype=torch.float64)
        if isinstance(got, list) and len(got) == len(want) > 0:
            x, limit = tensor(t.args["call"]).double().reshape(-1), t.args["call"]["limit"]
            g = torch.cos(limit * torch.tanh(x / limit))
            found.append((x, limit, g, torch.tensor(got, dtype=torch.float64), want))
    return found


def _near(a, b) -> bool:
    return torch.allclose(a, b, rtol=1e-4, atol=1e-4)


def _gradient_is(e, *formulas) -> bool:
    """The gradients are wrong, and are those of another formula."""
    found = [f for f in _derivatives(e, "gradients") if not _near(f[3], f[4])]
    return bool(found) and any(all(_near(f[3], formula(*f[:3])) for f in found) for formula in formulas)


def _slope(x, limit):
    return 1 - torch.tanh(x / limit) ** 2


WRONG = (
    lambda x, limit, g: g * (1 - (limit * torch.tanh(x / limit)) ** 2),
    lambda x, limit, g: g * _slope(x, limit) / limit,
    lambda x, limit, g: g * _slope(x, limit) * limit,
    lambda x, limit, g: g * (1 - torch.tanh(x) ** 2),
    lambda x, limit, g: g * (1 - torch.tanh(x / limit)),
    lambda x, limit, g: g * (1 - torch.tanh(torch.tanh(x / limit)) ** 2),
    lambda x, limit, g: g,
)


def _second_lost(e) -> bool:
    first, second = _derivatives(e, "gradients"), _derivatives(e, "second")
    right = bool(first) and all(_near(got, want) for *_, got, want in first)
    wrong = any(not _near(got, want) for *_, got, want in second)
    return right and (wrong or (_raised(e, "second", "") and not _raised(e, "gradients", "")))


def _kernel_missed(e) -> bool:
    return _some(e, "result", lambda r: r["kernel_ran"] is False) and not _computed_above(e)


MISTAKES = (
    Mistake(
        "nothing_defined",
        'There is no operator `cap` in the library that was given: `library.define("cap(Tensor x, float limit) -> '
        'Tensor")`.',
        sign=lambda e: e.raised("no operator called `cap`"),
    ),
    Mistake(
        "not_masked",
        "The kernel of Autograd calls the operator, which calls the kernel of Autograd, for ever. It has to mask "
        "itself (`torch._C._AutoDispatchBelowAutograd()`) or hand on the keys below its own; no_grad masks no key.",
        sign=lambda e: any(_raised(e, look, "RecursionError") for look in ("result", "gradients")),
    ),
    Mistake(
        "mask_kept",
        "After the call Autograd is still masked, for everything that this thread does: use a context, which ends.",
        sign=lambda e: any(r["state_kept"] is False for r in _reports(e)),
    ),
    Mistake(
        "one_for_all_backends",
        "A kernel was registered for an alias, CompositeImplicitAutograd or CompositeExplicitAutograd, which stands "
        "for many keys: here each of CPU, Meta and Autograd gets its own.",
        sign=_composite,
    ),
    Mistake(
        "no_cpu",
        "Nothing is registered for CPU: below Autograd, in inference mode for example, nothing is left to run.",
        sign=lambda e: _lacks(e, "CPU"),
    ),
    Mistake(
        "no_meta",
        "Nothing is registered for Meta: without data the operator cannot even say which shape it returns.",
        sign=lambda e: _lacks(e, "Meta"),
    ),
    Mistake(
        "no_autograd",
        'Nothing is registered for "Autograd", so no gradient comes back. (AutogradCPU stands for one device only.)',
        sign=lambda e: _lacks(e, "Autograd"),
    ),
    Mistake(
        "input_changed",
        "The operator writes into its input, and its schema does not say so: write into a new tensor.",
        sign=lambda e: _some(e, "result", lambda r: r["input_changed"] or r["shares_memory"]),
    ),
    Mistake(
        "memory_not_contiguous",
        "The kernel of the CPU takes the strides of x for its result. `empty_like` keeps strides; "
        "`x.new_empty(x.shape)` does not.",
        sign=_not_contiguous,
    ),
    Mistake(
        "computed_in_autograd",
        "The kernel of Autograd computes the result itself: a mode or another backend never sees `cap`. Call the "
        "operator again, with Autograd masked.",
        sign=_computed_above,
    ),
    Mistake(
        "meta_computes",
        "The kernel of Meta touches data, and there is none: it should only make an empty tensor on meta.",
        sign=lambda e: _raised(e, "meta", "meta") or _raised(e, "meta", "numpy") or _raised(e, "meta", "data"),
    ),
    Mistake(
        "meta_on_cpu",
        "The result on meta is not on meta: give the device of x to the new tensor.",
        sign=lambda e: _meta_differs(e, "device"),
    ),
    Mistake(
        "meta_with_another_type",
        "The result on meta has another type than x.",
        sign=lambda e: _meta_differs(e, "dtype"),
    ),
    Mistake(
        "meta_with_other_strides",
        "The result on meta has the strides of x, the real one is contiguous: both have to agree.",
        sign=lambda e: _meta_differs(e, "shape") or _meta_differs(e, "strides"),
    ),
    Mistake(
        "kernel_not_called",
        "The kernel of the CPU computes with operators of torch: call `cap_into`, of which autograd knows nothing.",
        sign=_kernel_missed,
    ),
    Mistake(
        "no_graph",
        "The kernel of Autograd masks itself and records nothing: an autograd.Function has to stand around the call.",
        sign=lambda e: _raised(e, "gradients", "does not require grad") or _raised(e, "gradients", "no gradient came"),
    ),
    Mistake(
        "gradient_missing_for_limit",
        "backward gives one value for each argument of forward: None for those that are no tensors.",
        sign=lambda e: _raised(e, "gradients", "incorrect number of gradients"),
    ),
    Mistake(
        "incoming_gradient_forgotten",
        "backward gives the derivative alone: multiply it with the gradient of the result.",
        sign=lambda e: _gradient_is(e, lambda x, limit, g: _slope(x, limit)),
    ),
    Mistake(
        "derivative_wrong",
        "The derivative of limit * tanh(x / limit) is 1 - tanh(x / limit) squared; with y the result, 1 - (y / limit) "
        "squared.",
        sign=lambda e: _gradient_is(e, *WRONG),
    ),
    Mistake(
        "second_derivative_lost",
        "The gradient has no gradient, or a wrong one: in backward compute from a saved input or output with operators "
        "that autograd knows. A value that forward computed besides is a constant there.",
        sign=_second_lost,
    ),
)
