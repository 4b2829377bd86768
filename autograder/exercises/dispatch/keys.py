"""dispatch.keys: a rule for the keys that a call meets, in their order.

    keys(tensors, around) -> ["AutogradCPU", "ADInplaceOrView", "BackendSelect", "CPU"]

`tensors`: the arguments of a call, and `around`: the contexts in which it is made, outermost first. Both are plain
data; `course_lib.torch_inside.keysets` says what the words in them mean and makes the real thing of them.

Asked for: the names of the keys in the set with which the call begins, (those of all tensors and those that the thread
includes) less those that the thread excludes, highest priority first. Of each kind of key only the highest backend's
counts: a call with tensors on "cpu" and on "meta" meets AutogradMeta and Meta, not AutogradCPU and CPU.

The truth is what torch says when the answer is judged, on calls drawn at random. The rule itself has no torch: for the
referee it runs where the folder of that package is empty.
"""

from __future__ import annotations

from functools import partial

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.dispatch.keys_mistakes import MISTAKES, truth
from autograder.exercises.dispatch.keys_mixtures import SUBJECTS, TIMES, mixture
from autograder.exercises.dispatch.keys_mixtures import tensor as _tensor
from autograder.exercises.recorded import judged_here
from autograder.exercises.telling import telling
from course_lib.torch_inside import keysets

# -------------------------------------------------------------------------------------------- the comparison


def accept(got, want, args) -> str | None:
    if not isinstance(got, list | tuple) or not all(isinstance(name, str) for name in got):
        return f"`keys` should return a list of names of keys, got {got!r:.60}"
    got = list(got)
    if len(set(got)) < len(got):
        return "a key is in the list twice"
    if surplus := [name for name in got if name not in want]:
        return f"{surplus[0]:.40} does not belong to the set"
    if missing := len(want) - len(got):
        return f"{missing} key{' is' if missing == 1 else 's are'} missing"
    return None if got == want else "the keys are right, their order is not"


# ------------------------------------------------------------------------------------------------- the cases


def _call(d: Draw, tensors, around=()) -> Call:
    tensors = list(tensors)
    d.rng.shuffle(tensors)
    told = "; ".join(" ".join([t["device"], *t["made"]]) for t in tensors)
    return Call(
        {"tensors": tensors, "around": list(around)}, f"{told or 'no tensor'}, in {', '.join(around) or 'nothing'}"
    )


def _plain(d: Draw, **options) -> dict:
    """A tensor of which nothing matters but its device."""
    kinds = {"device": d.choice(("cpu", "meta"))} | options
    return _tensor(*d.choice(((), ("view",), ("clone",))), **kinds)


def _of_inference(d: Draw, *later: str, **options) -> dict:
    return _tensor("inference", *later, **options)


def _mixed(d: Draw, subject: str, number: int) -> Call:
    return _call(d, *mixture(d, subject, number))


CASES = (
    Case("no gradient required", lambda d: _call(d, [_plain(d)])),
    Case("a gradient required", lambda d: _call(d, [_plain(d, needs=True), _plain(d, device="cpu")])),
    Case("no_grad", lambda d: _call(d, [_plain(d, needs=True)], ["no_grad"])),
    Case("no tensor", lambda d: _call(d, [], d.choice((["no_grad"], ["autocast"], ["dispatch mode", "autocast"])))),
    Case("in inference mode", lambda d: _call(d, [_plain(d, needs=True)], ["inference_mode"])),
    Case("an inference tensor outside", lambda d: _call(d, [_of_inference(d)])),
    Case("an inference tensor in its mode", lambda d: _call(d, [_of_inference(d, "view")], ["inference_mode"])),
    Case("views of inference tensors", lambda d: _call(d, [_of_inference(d, "view")], d.choice(([], ["no_grad"])))),
    Case("clones of inference tensors", lambda d: _call(d, [_of_inference(d, "clone"), _of_inference(d)])),
    Case("inference tensors, wrapped", lambda d: _call(d, [_of_inference(d, "wrapped")])),
    Case("an inference tensor on meta", lambda d: _call(d, [_of_inference(d, device="meta"), _plain(d, device="cpu")])),
    Case("in autocast", lambda d: _call(d, [_plain(d, device="cpu"), _plain(d)], ["autocast"])),
    Case("in autocast, on meta", lambda d: _call(d, [_plain(d, device="meta")], ["autocast"])),
    Case("autocast, taken back", lambda d: _call(d, [_plain(d, device="cpu")], ["autocast", "autocast(False)"])),
    Case("autocast within its end", lambda d: _call(d, [_plain(d, device="cpu")], ["autocast(False)", "autocast"])),
    Case("two backends", lambda d: _call(d, [_plain(d, device="cpu"), _plain(d, device="meta")])),
    Case("wrapped", lambda d: _call(d, [_tensor("wrapped", device=d.choice(("cpu", "meta")))])),
    Case("a dispatch mode", lambda d: _call(d, [_plain(d)], ["dispatch mode"])),
    Case("in a handler", lambda d: _call(d, [_plain(d, needs=True)], ["autocast", "handler"])),
    Case("a mode around a handler", lambda d: _call(d, [_plain(d), _plain(d)], ["dispatch mode", "handler"])),
    Case("a wrapper in a handler", lambda d: _call(d, [_tensor("wrapped"), _plain(d, device="meta")], ["handler"])),
    Case("below autograd", lambda d: _call(d, [_plain(d, needs=True)], ["below autograd"])),
    *(
        Case(f"{subject}, mixture {number + 1}", partial(_mixed, subject=subject, number=number))
        for subject in SUBJECTS
        for number in range(TIMES)
    ),
)

KEYS = Exercise(
    name="dispatch.keys",
    entry="keys",
    points=6,
    about="the keys that a call has, from its tensors and from the thread",
    point=("in inference mode", "in autocast", "wrapped", "in a handler"),
    kind="scenario",
    cases=telling(CASES, lambda v: {"keys": truth.Rule().met(v["tensors"], v["around"])}, MISTAKES, accept),
    oracle=lambda v: {"keys": keysets.met(v["tensors"], v["around"])},
    mistakes=MISTAKES,
    returns=("keys",),
    accept=accept,
    launches=False,
    hides=("torch", "triton", "course_lib.torch_inside"),
)
KEYS = judged_here(KEYS, truth)
