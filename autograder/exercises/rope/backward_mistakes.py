"""How people differentiate the rotation wrongly."""

import torch

from autograder.exercise import Mistake
from autograder.exercises.everywhere import number_of_gradients
from autograder.exercises.rope import wrong_rotation_formulas as wrong
from autograder.exercises.rope.rotation import backwards, turned
from autograder.exercises.strides import as_read

IN_PLACE = ("lies in the memory of", "in-place operation", "modifies inplace")  # what the probe or autograd says
GRADIENTS = (  # cases where a gradient has other strides than its tensor, or none
    "a gradient with heads side by side",
    "a gradient with elements apart",
    "the gradient of a sum",
    "heads side by side",
    "fp16",
    "bf16",
)


INPUTS = ("heads side by side", "fp16", "bf16")  # cases where q and k have other strides than a new tensor


def gradients(v) -> dict[str, torch.Tensor]:
    """Of both results, as large as these are."""
    of_q, of_k = v["q_grad"], v["q_grad"] if v["k_grad"] is None else v["k_grad"]
    return {"q": of_q.expand(v["q"].shape), "k": of_k.expand(v["k"].shape)}


def _forth(v, x):
    return turned(v, x)


def _back(v, x):
    return turned(v, x, mix=backwards)


def _made(forth=_forth, back=_back):
    """An answer from a formula for each pass, (arguments, tensor) -> tensor."""

    def answer(v):
        made = {f"{name}_turned": forth(v, v[name]) for name in "qk"}
        return made | {f"d{name}": back(v, g) for name, g in gradients(v).items()}

    return answer


def _with(change):
    """Both passes with other arguments."""
    return _made(lambda v, x: turned(v | change, x), lambda v, x: turned(v | change, x, mix=backwards))


def _back_with(change):
    return _made(back=lambda v, x: turned(v | change(v), x, mix=backwards))


def _one_sign_back(minus: bool):
    return lambda v, x: turned(v, x, mix=wrong.one_sign(minus))


def _other(v) -> dict:
    return {"layout": "interleaved" if v["layout"] == "halves" else "halves"}


def _changed(v, **outputs) -> dict:
    """The truth, but for some outputs."""
    return _made()(v) | outputs


def _exchanged(v) -> dict:
    if v["q"].shape != v["k"].shape:
        return {}
    made = _made()(v)
    return made | {"dq": made["dk"], "dk": made["dq"]}


def _strides_of_q(v, forth: bool) -> dict:
    """k, or the gradient of k alone, read with the strides of the other."""
    of = gradients(v)
    made = {"dk": _back(v, as_read(of["k"], of["k"].shape, of["q"].stride()))}
    if forth:
        made["k_turned"] = _forth(v, as_read(v["k"], v["k"].shape, v["q"].stride()))
    return _changed(v, **made)


def _layout_ignored_back(e) -> bool:
    return wrong.layout_ignored(e, _back_with(_other))


def _layout_ignored(e) -> bool:
    return wrong.layout_ignored(e, lambda v: _with(_other(v))(v))


def _rest_alone(e, *outputs: str) -> bool:
    """Only elements that are not turned are wrong, in at least one of these outputs."""
    if e.raised_any():
        return False
    wrong_in = {name for t in e.failing for name in t.want if _wrong_elements(e, t, name).any()}
    turning = (_wrong_elements(e, t, name)[..., : 2 * t.args["cos"].shape[1]] for t in e.failing for name in t.want)
    return not wrong_in.isdisjoint(outputs) and not any(map(torch.any, turning))


def _wrong_elements(e, t, output: str) -> torch.Tensor:
    return e.wrong(t, output) | t.outcome.outputs[output].isnan()


def _heads_of_q(e) -> bool:
    """Errors, and only where k has another number of heads; on a GPU a stray store makes none."""
    alike = any(t.args["q"].shape[1] == t.args["k"].shape[1] for t in e.failing)
    said = "the result for k has shape", "invalid gradient at index 1", "outside every argument"
    return e.failed("fewer heads of keys") and not alike and any(map(e.raised, said))


def _memory_of_gradients(e) -> bool:
    """Wrong only where a gradient has gaps or no memory, and not because it was read with other strides."""
    gaps = "a gradient with heads side by side", "a gradient with elements apart"
    read_rightly = e.raised("store of") or all(map(e.passed, gaps))
    return e.failed("the gradient of a sum") and e.failed_only("the gradient of a sum", *gaps) and read_rightly


def _strides_of_results(e) -> bool:
    """The results are wrong, and only in cases where q and k have other strides than a new tensor."""
    wrong_in = {name for t in e.failing if not t.outcome.error for name in t.want if _wrong_elements(e, t, name).any()}
    return e.failed_only(*INPUTS) and bool(wrong_in & {"q_turned", "k_turned"})


def _gradient_strides(e) -> bool:
    return e.failed("a gradient with heads side by side") and e.failed_only(*GRADIENTS)


MISTAKES = (
    Mistake(
        "activation_kept",
        "Something as large as q or k is kept for the backward pass: the gradient of a rotation does not depend on "
        "what was turned. Keep cos, sin, positions and the numbers.",
        sign=lambda e: e.raised("are kept for the backward pass"),
    ),
    Mistake(
        "gradients_copied",
        "A gradient is copied before it is turned: four passes over memory in place of two. Give the kernel the "
        "gradient as it lies, with all of its own strides.",
        sign=lambda e: all("are to be read where they lie" in (t.outcome.error or "") for t in e.failing),
    ),
    Mistake(
        "not_differentiable",
        "The results have no gradient function: a kernel is no operator of torch. Write a torch.autograd.Function, and "
        "call its `apply`.",
        sign=lambda e: e.raised("has no gradient function") or e.raised("does not require grad"),
    ),
    number_of_gradients("all but q and k"),
    Mistake(
        "gradient_of_k_missing",
        "There is no gradient of k: `backward` returns None for it.",
        sign=lambda e: e.raised("there is no gradient of k"),
    ),
    Mistake(
        "results_in_place",
        "q or k itself was turned: the results are new tensors, and q and k stay as they are.",
        sign=lambda e: e.changed("q") or e.changed("k") or any(map(e.raised, IN_PLACE)),
    ),
    Mistake(
        "gradient_overwritten",
        "The gradients that arrived were turned in place. They belong to others: where q and k are added, one tensor "
        "is the gradient of both, and is turned twice. Write into new tensors.",
        sign=lambda e: e.changed("q_grad") or e.changed("k_grad"),
    ),
    Mistake(
        "turned_forth_again",
        "The gradients are turned forth, as q and k were: backward turns back, with the other sign of the sine.",
        answer=_made(back=_forth),
    ),
    Mistake(
        "gradient_not_turned",
        "The gradients are passed on as they came: they have to be turned back.",
        answer=_made(back=lambda v, x: x.double()),
    ),
    Mistake(
        "turned_back_and_forth",
        "Both directions are exchanged: forward y0 = x0 cos - x1 sin, y1 = x1 cos + x0 sin.",
        answer=_made(_back, _forth),
    ),
    Mistake(
        "one_sign_back",
        "The backward pass is no rotation: turned back, the sine has a plus in the first result and a minus in the "
        "second.",
        answer=lambda v, minus: _made(back=_one_sign_back(minus))(v),
        variants=(False, True),
    ),
    Mistake(
        "cosine_alone_back",
        "The gradients are multiplied with the cosine only: each depends on both results of its pair.",
        answer=_made(back=lambda v, x: turned(v, x, mix=wrong.cosine_alone)),
    ),
    Mistake(
        "layout_ignored_back",
        "Backward knows one layout only: keep `layout`, and pass it on.",
        sign=_layout_ignored_back,
    ),
    Mistake(
        "layout_ignored",
        "`layout` changes nothing: for halves the pairs are (x[j], x[j + P]), for interleaved (x[2 j], x[2 j + 1]).",
        sign=_layout_ignored,
    ),
    Mistake(
        "offset_ignored_back",
        "Backward forgets the offset: it turns by the same angles as forward.",
        answer=_back_with(lambda v: {"offset": 0}),
    ),
    Mistake(
        "offset_ignored",
        "`offset` changes nothing: row s is at position offset + s.",
        answer=_with({"offset": 0}),
    ),
    Mistake(
        "ids_ignored_back",
        "Backward forgets the position ids: it turns by the same angles as forward.",
        answer=_back_with(lambda v: {"positions": None}),
    ),
    Mistake(
        "ids_ignored",
        "`positions` changes nothing: where it is not None, row s of sequence b is at offset + positions[b, s].",
        answer=_with({"positions": None}),
    ),
    Mistake(
        "rest_not_copied",
        "Wrong only where a part of the head is turned, and only in what is not turned: the results are new tensors, "
        "so the rest of each head has to be copied, forward and back.",
        sign=lambda e: _rest_alone(e, "q_turned", "k_turned"),
    ),
    Mistake(
        "rest_without_gradient",
        "Wrong only where a part of the head is turned: what is copied forward has its gradient copied back.",
        sign=lambda e: _rest_alone(e, "dq", "dk"),
    ),
    Mistake(
        "gradients_exchanged",
        "The gradients of q and k are exchanged: they are returned in the order of the arguments.",
        answer=_exchanged,
    ),
    Mistake(
        "gradient_of_k_zero",
        "The gradient of k is zero: k is turned too, so its gradient is turned back.",
        answer=lambda v: _changed(v, dk=torch.zeros_like(v["k"], dtype=torch.float64)),
    ),
    Mistake(
        "gradient_of_k_not_turned",
        "The gradient of k is passed on as it came, that of q is turned back: k is turned too, so turn back both.",
        answer=lambda v: _changed(v, dk=gradients(v)["k"].double()),
    ),
    Mistake(
        "gradient_of_k_turned_forth",
        "The gradient of q is turned back, that of k forth: the sine needs its other sign for both.",
        answer=lambda v: _changed(v, dk=_forth(v, gradients(v)["k"])),
    ),
    Mistake(
        "strides_of_q_for_k",
        "k or its gradient is read with the strides of q or of the gradient of q: each tensor has strides of its own.",
        answer=_strides_of_q,
        variants=(False, True),
    ),
    Mistake(
        "heads_of_q_for_both",
        "Wrong where k has fewer heads than q: k or its gradient is walked over the heads of q. Each has a number of "
        "heads of its own.",
        sign=_heads_of_q,
    ),
    Mistake(
        "heads_of_k_for_both",
        "Only as many heads of the gradient of q are turned back as k has: q and k have a number of heads each.",
        answer=lambda v: _changed(v, dq=_some_heads(v)),
    ),
    Mistake(
        "strides_of_inputs_for_results",
        "q or k and what it was turned into have strides of their own: read with those of q, write with those of the "
        "result. In place both were the same.",
        sign=_strides_of_results,
    ),
    Mistake(
        "strides_of_gradients_for_results",
        "New memory is taken to have the strides of the gradient. Those of a sum are 0, so that all elements would lie "
        "in one place, and `empty_like` makes no gaps: write with the strides of what you have made, and read with "
        "those of the gradient.",
        sign=_memory_of_gradients,
    ),
    Mistake(
        "gradient_strides_ignored",
        "Right while a gradient has the strides of q, wrong or NaN otherwise: pass the strides of the gradient itself. "
        "Those of a sum are 0.",
        sign=_gradient_strides,
    ),
)


def _some_heads(v) -> torch.Tensor:
    gradient, few = gradients(v)["q"], slice(0, v["k"].shape[1])
    made = gradient.double().clone()
    made[:, few] = _back(v, gradient)[:, few]
    return made
