"""How people put a block together wrongly: what a part of it does, and what goes from one part to the next."""

from functools import partial

import torch

from autograder.exercise import Mistake
from autograder.exercises.capstone.block import NAMES, PARAMETERS, RIGHT, passes, real_keys, through_norm
from autograder.exercises.everywhere import inputs_changed, no_mask_on_store
from autograder.exercises.mlp.gelu import by_erf, overflowing, slope, slope_by_erf, slope_overflowing
from course_lib.numerics import error

FIRST, AGAIN = "sizes for the first time", "the same sizes again"
BIASES = tuple(name for name in PARAMETERS if name.endswith("_b"))
INPUTS = ("x", "lengths", "dy", *PARAMETERS)


def _with(**changes):
    return lambda v: passes(v, **changes)


def _all_keys(v) -> torch.Tensor:
    return torch.ones_like(real_keys(v))


def _one_key_more(v) -> torch.Tensor:
    return real_keys(v | {"lengths": v["lengths"] + 1})


def _one_length(v, which: str):
    length = v["lengths"][:1] if which == "first" else v["lengths"].max()
    return passes(v | {"lengths": length.expand_as(v["lengths"])})


def _mask_in_one_pass(v, missing: str):
    changes = {"keys_again": _all_keys} if missing == "backward" else {"keys": _all_keys, "keys_again": real_keys}
    return passes(v, **changes)


def _scaled_by(v, which: str):
    by = {"width": lambda _, width: width**-0.5, "nothing": lambda *_: 1.0, "head size": lambda size, _: 1 / size}
    return passes(v, scale=by[which])


def _scale_missing(v, which: str):
    return passes(v, scales_again=lambda scale: (1.0 if "q" in which else scale, 1.0 if "k" in which else scale))


def _heads_first(qkv: torch.Tensor, heads: int) -> list[torch.Tensor]:
    """(B, N, heads, 3, D) where (B, N, 3, heads, D) is meant."""
    batch, n, _ = qkv.shape
    return [t.transpose(1, 2) for t in qkv.view(batch, n, heads, 3, -1).unbind(3)]


def _joined_by_heads(*gradients: torch.Tensor) -> torch.Tensor:
    return torch.stack([t.transpose(1, 2) for t in gradients], 3).flatten(2)


def _joined_in_order(order):
    def join(*gradients):
        return torch.stack([gradients[n].transpose(1, 2) for n in order], 2).flatten(2)

    return join


def _of(**changed):
    return lambda v: passes(v, of=changed)


def _of_some(changed: dict):
    """The gradients that a variant names, computed in this other way."""
    return lambda v, names: passes(v, of={name: changed[name] for name in names})


def _subsets(*names: str) -> tuple[tuple[str, ...], ...]:
    return (names, *((name,) for name in names)) if len(names) > 1 else (names,)


def _averaged(v, names):
    rows = v["x"].shape[0] * v["x"].shape[1]
    made = passes(v)
    return made | {f"d_{name}": made[f"d_{name}"] / rows for name in names}


def _before_length(name: str):
    """A parameter's gradient of rows before the length alone."""

    def gradient(t):
        real = (torch.arange(t["n"], device=t["dy"].device) < t["lengths"][:, None]).flatten()[:, None]
        kept = {key: value * real for key, value in t.items() if isinstance(value, torch.Tensor) and key != "lengths"}
        return RIGHT[name](t | kept)

    return gradient


REAL_ROWS = {name: _before_length(name) for name in PARAMETERS}

ATTENTION = (
    Mistake(
        "lengths_ignored",
        "Every key is used: those from the length of its image on have a weight of 0, and no gradient.",
        answer=_with(keys=_all_keys),
    ),
    Mistake(
        "mask_in_one_pass",
        "Keys behind the length are left out in one pass only: the weights are made again backward, and there the mask "
        "belongs too.",
        answer=_mask_in_one_pass,
        variants=("backward", "forward"),
    ),
    Mistake(
        "length_off_by_one",
        "One key too many: key n is used where n < length.",
        answer=_with(keys=_one_key_more),
    ),
    Mistake(
        "one_length_for_all",
        "All images have the same length here: each program loads `lengths + image`.",
        answer=_one_length,
        variants=("first", "longest"),
    ),
    Mistake(
        "padding_queries_zeroed",
        "Queries behind the length attend to nothing: only keys are left out, queries are computed like all others.",
        answer=_with(queries=real_keys),
    ),
    Mistake(
        "padding_queries_unwritten",
        "y is wrong in rows behind the length alone: attention stores no result there, though queries behind the "
        "length are computed like all others. A block of queries is masked by N alone.",
        sign=lambda e: _wrong_only_behind(e),
    ),
    Mistake(
        "wrong_scale",
        "Scores are not scaled by 1 / sqrt(D), where D is the size of a head, d / heads.",
        answer=_scaled_by,
        variants=("width", "nothing", "head size"),
    ),
    Mistake(
        "scale_missing_backward",
        "dq, dk or both lack the scale: both gradients are multiplied with it once.",
        answer=_scale_missing,
        variants=("qk", "q", "k"),
    ),
    Mistake(
        "delta_missing",
        "ds is p dp: delta, the sum of o do over a head's columns, has to be subtracted from dp.",
        answer=_with(delta=False),
    ),
    Mistake(
        "heads_outside",
        "A row of qkv is read as heads of q, k and v: it holds q of all heads, then k, then v, so head h of k begins "
        "at d + h D.",
        answer=_with(apart=_heads_first, together=_joined_by_heads),
    ),
    Mistake(
        "gradients_in_another_order",
        "y is right, and dq, dk and dv stand in the wrong thirds of their gradient: its rows are q, then k, then v.",
        answer=lambda v, order: passes(v, together=_joined_in_order(order)),
        variants=((1, 0, 2), (0, 2, 1), (2, 1, 0)),
    ),
    Mistake(
        "no_maximum",
        "exp overflows when scores are large: subtract the running maximum in the forward pass.",
        sign=lambda e: e.failed_only("large scores") and _some_nan(e),
    ),
)

AROUND = (
    Mistake(
        "residual_missing",
        "y lacks what goes around a branch: h = x + attention, y = h + MLP.",
        answer=lambda v, skips: passes(v, skips=skips),
        variants=((False, True), (True, False), (False, False)),
    ),
    Mistake(
        "residual_of_norm",
        "The result of a norm is added where its input belongs: h = x + attention(norm(x)), y = h + MLP(norm(h)).",
        answer=_with(skips_normed=True),
    ),
    Mistake(
        "gradient_around_missing",
        "y is right, and a gradient goes through a branch only: dh = dy + what comes through the MLP, dx = dh + what "
        "comes through attention.",
        answer=lambda v, skips: passes(v, skips_again=skips),
        variants=((True, False), (False, True), (False, False)),
    ),
    Mistake(
        "out_takes_dy",
        "The gradients of out_w or out_b are made of dy: between them and y lies the MLP, so they take dh.",
        answer=_of_some({"out_w": lambda t: t["dy"].mT @ t["o"], "out_b": lambda t: t["dy"].sum(0)}),
        variants=_subsets("out_w", "out_b"),
    ),
    Mistake(
        "product_of_input_of_norm",
        "The gradient of qkv_w or up_w is made with x or h: what these matrices multiply is the result of the norm.",
        answer=_of_some({"qkv_w": lambda t: t["dqkv"].mT @ t["x"], "up_w": lambda t: t["du"].mT @ t["h"]}),
        variants=_subsets("qkv_w", "up_w"),
    ),
    Mistake(
        "overwritten_too_early",
        "A gradient is made of what has been written over: a buffer is free once its last reader has run, and the "
        "product for a weight is one of them.",
        answer=lambda v, of: passes(v, of=dict([of])),
        variants=(
            ("down_w", lambda t: t["dy"].mT @ t["du"]),
            ("down_w", lambda t: t["dy"].mT @ t["dg"]),
            ("up_w", lambda t: t["du"].mT @ t["dn2"]),
            ("qkv_w", lambda t: t["dqkv"].mT @ t["dn1"]),
        ),
    ),
    Mistake(
        "transposed",
        "d_out_w is transposed: it is dhᵀ o, a row for each column of what the product gave.",
        answer=_of(out_w=lambda t: t["o"].mT @ t["dh"]),
    ),
    Mistake(
        "bias_missing",
        "A bias is not added.",
        answer=lambda v, name: passes(v, unbiased=(name,)),
        variants=BIASES,
    ),
    Mistake(
        "averaged",
        "The gradient of a bias is a mean over rows: it is their sum.",
        answer=_averaged,
        variants=(BIASES, ("qkv_b", "out_b", "up_b", "down_b"), *((name,) for name in BIASES)),
    ),
    Mistake(
        "padding_left_out",
        "Gradients of parameters leave out rows behind the length: dy is given for these too, and they count.",
        answer=_of_some(REAL_ROWS),
        variants=(PARAMETERS, BIASES, ("qkv_b", "out_b", "up_b", "down_b"), ("qkv_w", "out_w", "up_w", "down_w")),
    ),
)

NORMS = (
    Mistake(
        "weight_missing_backward",
        "Gradients pass a norm without its weight: g = dn weight comes first.",
        answer=_with(norm_weight_again=False),
    ),
    Mistake(
        "means_missing",
        "The gradient of a norm lacks a mean: dx = (g - mean(g) - hat mean(g hat)) / deviation, of each row.",
        answer=lambda v, both: passes(v, through_norm=partial(through_norm, by_mean=both[0], by_deviation=both[1])),
        variants=((False, True), (True, False), (False, False)),
    ),
    Mistake(
        "norm_weight_of_x",
        "The gradient of a norm's weight is made with its input: it is the sum of dn hat, where hat is "
        "(x - mean) / deviation.",
        answer=_of_some({"n1_w": lambda t: (t["dn1"] * t["x"]).sum(0), "n2_w": lambda t: (t["dn2"] * t["h"]).sum(0)}),
        variants=_subsets("n1_w", "n2_w"),
    ),
    Mistake(
        "unbiased_variance",
        "The variance of a row divides by d, not by d - 1.",
        answer=_with(fewer=1),
    ),
    Mistake(
        "another_eps",
        "Wrong only where x is small: 1e-5 is added to the variance, under the root.",
        answer=lambda v, eps: passes(v, eps=eps),
        variants=(0.0, 1e-6, 1e-8, 1e-12),
    ),
)

MLP = (
    Mistake(
        "erf",
        "This is GELU with erf: the block has the form with tanh.",
        answer=_with(value=by_erf, rise=slope_by_erf),
    ),
    Mistake(
        "slope_of_erf",
        "y is right, and the slope is that of GELU with erf: close, and off by up to 1e-3.",
        answer=_with(rise=slope_by_erf),
    ),
    Mistake(
        "inner_derivative_missing",
        "In the slope of GELU u' is missing: tanh(u) has the derivative (1 - t^2) u', with "
        "u' = sqrt(2 / pi) (1 + 3 x 0.044715 h^2).",
        answer=_with(rise=partial(slope, inner=False)),
    ),
    Mistake(
        "slope_missing",
        "The gradient passes GELU unchanged: du = dg gelu'(u).",
        answer=_with(rise=torch.ones_like),
    ),
    Mistake(
        "slope_at_result",
        "The slope was taken at gelu(u): it is gelu'(u), at the pre-activation. Was u written over?",
        answer=lambda v: passes(v, rise=lambda u: slope(_gelu(u))),
    ),
    Mistake(
        "tanh_overflows",
        "NaN where the pre-activation is large: e^(2u) is infinite there, and (e^(2u) - 1) / (e^(2u) + 1) infinity "
        "over infinity. With e^(-2u), 1 / (1 + e^(-2u)) ends well at both sides.",
        answer=_with(value=overflowing, rise=slope_overflowing),
    ),
    Mistake(
        "down_takes_u",
        "The gradient of down_w is made of the pre-activation: the product multiplies gelu(u), d_down_w = dyᵀ gelu(u).",
        answer=_of(down_w=lambda t: t["dy"].mT @ t["u"]),
    ),
    Mistake(
        "up_takes_dg",
        "The gradients of up_w or up_b are made of dg: the gradient has to pass GELU first, d_up_w = duᵀ n2.",
        answer=_of_some({"up_w": lambda t: t["dg"].mT @ t["n2"], "up_b": lambda t: t["dg"].sum(0)}),
        variants=_subsets("up_w", "up_b"),
    ),
)

MEMORY = (
    Mistake(
        "kept_from_first_call",
        "Right when sizes come for the first time, wrong when the same sizes come again: something of the first call "
        "was kept and used again. Shapes say nothing of the lengths, the heads or the addresses of a call.",
        sign=lambda e: e.failed_only(AGAIN) and e.passed(FIRST),
    ),
    no_mask_on_store("Something is written beyond an output: mask all stores, rows and columns.", *NAMES),
    inputs_changed(
        *INPUTS,
        says="An argument was written over: x, dy and the parameters belong to others. h = x + ... needs memory of its "
        "own.",
    ),
    Mistake(
        "never_written",
        "An output is NaN throughout, and others are right: it was not written, or added to what the caller's memory "
        "held before the call, which can be anything. The function fills y, dx and the gradients of all twelve "
        "parameters.",
        sign=lambda e: _nan_throughout(e),
    ),
    Mistake(
        "out_of_bounds",
        "A kernel reaches outside of its arrays: the last block has fewer rows, or fewer columns, than a tile.",
        sign=lambda e: e.raised("out of bounds") or e.raised("outside"),
    ),
)

# Behind GELU with erf, which is as near to the truth
LOWER_PRECISION = Mistake(
    "lower_precision",
    "fp32 inputs give the error of a shorter type: something was rounded to fp16, bf16 or TF32 on the way. Give "
    '`tl.dot` of fp32 `input_precision="ieee"`; convert weights, p and ds to the type of x, and nothing else.',
    sign=lambda e: _rounded_on_the_way(e),
)


def _gelu(u: torch.Tensor) -> torch.Tensor:
    return u - u * torch.sigmoid(-1.5957691216057308 * (u + 0.044715 * u**3))


def _ran(e) -> list:
    return [t for t in e.failing if t.outcome.error is None and not t.outcome.damage and not t.outcome.changed]


def _some_nan(e) -> bool:
    return any(t.outcome.outputs[name].isnan().any() for t in _ran(e) for name in NAMES)


def _wrong_only_behind(e) -> bool:
    """y is right in all rows before the lengths, and in every wrong case not in some behind them."""
    ran = _ran(e)
    if not ran or len(ran) < len(e.failing):
        return False
    for t in ran:
        got = t.outcome.outputs["y"]
        bad, real = (e.wrong(t, "y") | got.isnan().to(t.want["y"].device)).any(-1), real_keys(t.args)
        if not bad.any() or (bad & real.to(bad.device)).any():
            return False
    return True


def _nan_throughout(e) -> bool:
    """Some output in every wrong case, while another has no NaN at all."""
    ran = _ran(e)
    if not e.failed("whole tiles") or len(ran) < len(e.failing):
        return False
    nan = {name: [t.outcome.outputs[name].isnan() for t in ran] for name in NAMES}
    return any(all(one.all() for one in some) for some in nan.values()) and any(
        not any(one.any() for one in some) for some in nan.values()
    )


def _rounded_on_the_way(e) -> bool:
    """Only calls in fp32 are wrong, several, and by little; by more where scores are large, and nobody looks."""
    ran = _ran(e)
    if len(ran) < len(e.failing) or len(ran) < 3 or any(t.args["x"].dtype != torch.float32 for t in ran):
        return False
    told = [t for t in ran if t.case.name != "large scores"]
    off = [max(error(t.outcome.outputs[name], t.want[name]).rms for name in NAMES) for t in told]
    return all(1e-6 < one < 2e-2 for one in off)


MISTAKES = (*MEMORY, *ATTENTION, *AROUND, *NORMS, *MLP, LOWER_PRECISION)
