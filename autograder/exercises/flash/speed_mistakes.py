"""How people write a whole step wrongly: mistakes between the two passes, and a selection of those inside a pass."""

from itertools import product

import torch

from autograder.exercise import Mistake
from autograder.exercises.everywhere import inputs_changed, never_written, no_mask_on_store
from autograder.exercises.flash import wrong_backward_formulas as wrong_backward
from autograder.exercises.flash import wrong_forward_formulas as wrong_forward
from autograder.exercises.flash.attention import LOG2_E, attend, delta_of, gradients, visible
from autograder.exercises.flash.backward_mistakes import IN_ONE
from autograder.exercises.flash.inputs import KEPT_SAYS, kept_by_shape
from autograder.exercises.flash.wrong_backward_formulas import (
    WHICH,
    all_nan,
    from_lse,
    is_right,
    right_in_failing,
)
from autograder.exercises.flash.wrong_forward_formulas import BLOCKS, rounded_on_the_way, some_nan
from course_lib.device import TIER

WRITES = ("out", "lse", "dq", "dk", "dv")
INPUTS = ("q", "k", "v", "dout")


def _stored(v, made: dict) -> dict:
    """The arguments of the backward pass after a forward pass that stored these."""
    return v | {"out": made["out"].to(v["q"].dtype), "lse": made["lse"].float()}


def _from_forward(forward, see=visible):
    """A wrong forward pass, and a right backward pass that takes out and lse from it."""

    def answer(v, *variant):
        made = forward(v, *variant)
        known = _stored(v, made)
        return made | gradients(known, p=from_lse(known, see(known)), delta=delta_of(known))

    return answer


def _from_backward(backward):
    """A right forward pass, and a wrong backward pass."""

    def answer(v, *variant):
        made = attend(v)
        return made | backward(_stored(v, made), *variant)

    return answer


def _in_both(v, read: dict) -> dict:
    """The right results for other arguments than the given ones."""
    made = attend(read)
    return made | gradients(_stored(read, made))


def _causal_in_one(v, backward: bool):
    """The mask is missing in one of the two passes."""
    if backward:
        return _from_backward(wrong_backward.all_keys)(v, "both")
    return _from_forward(wrong_forward.all_keys)(v)


def _top_left(v):
    return _from_forward(wrong_forward.top_left, lambda known: visible(known, diagonal=0))(v)


def _lse_in_base_two(v, used: bool):
    """`used`: the backward pass takes it for a natural logarithm."""
    made = attend(v)
    known = _stored(v, made)
    lse = made["lse"] * LOG2_E
    if used:
        wrong = known | {"lse": lse.float()}
        return made | {"lse": lse} | gradients(wrong, p=from_lse(wrong, visible(v)), delta=delta_of(known))
    return made | {"lse": lse} | gradients(known)


def _strides_ignored(v, names):
    return _in_both(
        v, wrong_forward.read_as(v, **{n: (v[n].shape, wrong_forward.contiguous(v[n].shape)) for n in names})
    )


def _overflows(e) -> bool:
    """`out` is NaN for large scores, and right wherever else something is wrong."""
    large = [t for t in e.failing if t.case.name == "large scores"]
    outs = [t.outcome.outputs.get("out") for t in large]
    nan = bool(outs) and all(isinstance(x, torch.Tensor) and bool(x.isnan().any()) for x in outs)
    return nan and all(is_right(e, t, "out") for t in e.failing if t not in large)


def _right_so_far(e) -> bool:
    return right_in_failing(e, "out") and right_in_failing(e, "lse")


MISTAKES = (
    Mistake("kept_from_first_call", KEPT_SAYS, sign=kept_by_shape),
    no_mask_on_store(
        "Something is written beyond an output: mask all stores, rows (offs_m < n_q, offs_n < n_k) and columns "
        "(offs_d < D).",
        *WRITES,
    ),
    inputs_changed(*INPUTS),
    Mistake(
        "backward_before_forward",
        "out and lse are right and all gradients are NaN: the backward pass has read out or lse before they were "
        "there. Kernels run in the order of their launches.",
        sign=lambda e: (
            e.failed("whole tiles") and _right_so_far(e) and all_nan(e, "dk") and not right_in_failing(e, "dq")
        ),
    ),
    Mistake(
        "dq_not_zeroed",
        "dq is NaN throughout, everything else is right: it was added to without having been zeroed, or never stored. "
        "The memory of an output holds anything before the call.",
        sign=lambda e: _right_so_far(e) and all_nan(e, "dq") and right_in_failing(e, "dk"),
    ),
    never_written("An output was not written at all: the step fills out, lse, dq, dk and dv, all five.", *WRITES),
    Mistake(
        "nan_without_keys",
        "NaN where a query sees no key, forward or backward: its maximum and its L are -inf. Subtract 0 where it is "
        "-inf, and let p be 0 out of sight.",
        sign=lambda e: e.failed_only("causal, more queries than keys") and some_nan(e),
    ),
    Mistake(
        "no_maximum",
        "exp overflows when scores are large: subtract the running maximum in the forward pass.",
        sign=_overflows,
    ),
    Mistake(
        "lse_in_base_two",
        "lse is a logarithm to the base 2: what the kernels agree on among themselves is free, what is stored in lse "
        "is the natural one.",
        answer=_lse_in_base_two,
        variants=(False, True),
    ),
    Mistake(
        "causal_in_one_pass",
        "Causal holds in one direction only, forward or backward: both passes hide the same keys.",
        answer=_causal_in_one,
        variants=(True, False),
    ),
    Mistake(
        "causal_ignored",
        "`causal` changes nothing: hide the keys behind the diagonal, forward and backward.",
        answer=lambda v: _in_both(v, v | {"causal": False}),
    ),
    Mistake(
        "causal_top_left",
        "Causal is right only for as many keys as queries: query m sees key n where n <= m + n_k - n_q.",
        answer=_top_left,
    ),
    Mistake(
        "walk_ignores_difference",
        "Causal leaves out pairs when n_k > n_q: the walk over queries begins at the block of key - (n_k - n_q), that "
        "over keys ends at (block + 1) * BLOCK_M + n_k - n_q.",
        answer=_from_backward(wrong_backward.walk_ignores_difference),
        variants=tuple(product(("dkdv", "dq"), BLOCKS, BLOCKS, (0, -1))),
    ),
    Mistake(
        "delta_missing",
        "dv is right, dq, dk or both are not: delta is missing. ds = p (dp - delta), with delta = sum over d of out "
        "dout, in both passes.",
        answer=_from_backward(wrong_backward.without_delta),
        variants=wrong_backward.PASSES,
    ),
    Mistake(
        "scale_missing",
        "dq, dk or both lack the scale: both gradients are multiplied with it once.",
        answer=_from_backward(wrong_backward.by_factor(lambda v: 1 / v["scale"])),
        variants=WHICH,
    ),
    Mistake(
        "off_by_ln_2",
        "dq, dk or both are off by ln 2 or log2(e): the scale with log2(e) in it is for the exponent alone.",
        answer=_from_backward(wrong_backward.by_factor(lambda v, factor: factor)),
        variants=tuple(product(WHICH, (LOG2_E, 1 / LOG2_E))),
    ),
    Mistake(
        "scale_hard_coded",
        "Everything fits a scale of 1/sqrt(D) or 1/8: `scale` is an argument, and may be another number.",
        answer=lambda v, eighth: _in_both(v, v | {"scale": 0.125 if eighth else v["q"].shape[-1] ** -0.5}),
        variants=(False, True),
    ),
    Mistake(
        "last_keys_dropped",
        "The last partial block of keys is left out, forward or in the pass of dq: walk to n_k, with a mask.",
        answer=_from_forward(wrong_forward.keys_below(lambda n_q, n_k, block: n_k // block * block)),
        variants=BLOCKS,
    ),
    Mistake(
        "tail_dropped",
        "The last partial block of a walk backward is left out: over keys for dq, over queries for dk and dv.",
        answer=_from_backward(wrong_backward.tail_dropped),
        variants=IN_ONE,
    ),
    Mistake(
        "dout_strides_ignored",
        "Wrong when dout is not contiguous: use its own strides, for delta too.",
        answer=_from_backward(wrong_backward.dout_strides_ignored),
        variants=(("contiguous",), ("q",), ("contiguous", "delta"), ("q", "delta"), ("out", "delta")),
    ),
    Mistake(
        "strides_ignored",
        "Right for contiguous inputs only: use all strides of q, k and v.",
        answer=_strides_ignored,
        variants=("qkv", "kv", "k"),
    ),
    Mistake(
        "lower_precision",
        "fp32 inputs give the error of a shorter type: something was rounded to fp16, bf16 or TF32 on the way. Give "
        '`tl.dot` of fp32 `input_precision="ieee"`; convert weights, p and ds to the type of the inputs, and nothing '
        "else.",
        sign=rounded_on_the_way,
    ),
    Mistake(
        "race_on_dq",
        "Only dq is wrong, and another run gives another dq: several programs add to the same rows. Let one program "
        "own a block of queries, or add atomically to zeros.",
        sign=lambda e: TIER == "gpu" and _right_so_far(e) and right_in_failing(e, "dk") and right_in_failing(e, "dv"),
    ),
)
