"""How people come back from an MLP wrongly, or keep what they could compute again."""

from functools import partial

import torch

from autograder.exercise import Mistake
from autograder.exercises.everywhere import NOT_DIFFERENTIABLE, number_of_gradients
from autograder.exercises.mlp.block import passes
from autograder.exercises.mlp.gelu import (
    CUBE,
    ROOT,
    by_erf,
    gelu,
    overflowing,
    slope,
    slope_by_erf,
    slope_overflowing,
)
from autograder.exercises.strides import as_read
from course_lib.numerics import error

BLOCKS = (16, 32, 64, 128)


def _with(**changes):
    return lambda v: passes(v, **changes)


def _contiguous(name: str):
    """Memory read as if it were contiguous; behind the one number of a sum's gradient there is nothing."""

    return lambda v: passes(v | {name: _as_if_contiguous(v, name)})


def _as_if_contiguous(v, name: str) -> torch.Tensor:
    shape = v["x"].shape
    return as_read(v[name], shape, (shape[1], 1))


def _of_one_block(v, variant):
    """Sums over rows that take the first or the last block of rows only."""
    block, last = variant
    rows = len(v["x"])
    kept = slice((rows - 1) // block * block, rows) if last else slice(0, block)
    return passes(v, of_b1=lambda t: t["dh"][kept].sum(0), of_b2=lambda t: t["dy"][kept].sum(0))


def _tf32(e) -> bool:
    """Every output of every call in fp32 that is summed up from products is off, by what 11 bits give."""
    ran = [t for t in e.failing if t.outcome.error is None]
    if not ran or len(ran) < len(e.failing) or any(t.args["x"].dtype != torch.float32 for t in ran):
        return False
    for t in ran:
        for name in ("y", "dx"):
            off = error(t.outcome.outputs[name], t.want[name]).rms
            if not 2e-5 < off < 5e-3:
                return False
        if error(t.outcome.outputs["db2"], t.want["db2"]).rms > 1e-5:
            return False
    return True


def _summed_in_half(e) -> bool:
    """Only the biases' gradients are off, in fp16 and where there are many rows."""
    if not e.failing or any(t.outcome.error for t in e.failing) or not e.failed_only("many rows, fp16", "fp16", "bf16"):
        return False
    for t in e.failing:
        off = {
            name: error(t.outcome.outputs[name], t.want[name]).rms for name in ("y", "dx", "dw1", "dw2", "db1", "db2")
        }
        if max(off["db1"], off["db2"]) < 3 * max(off[name] for name in ("y", "dx", "dw1", "dw2")):
            return False
    return e.failed("many rows, fp16")


AUTOGRAD = (
    Mistake(
        "something_kept",
        "More is kept for backward than the five arguments: h and a are computed again, from x, w1 and b1.",
        sign=lambda e: e.raised("beside the arguments are kept for backward"),
    ),
    Mistake(
        "much_in_passing",
        "A pass holds more than two matrices as large as h at one time. The kernel reads an element of h and of da and "
        "needs neither afterwards: write a where h was, and dh where da was.",
        sign=lambda e: all("bytes are alive that it made" in (t.outcome.error or "") for t in e.failing),
    ),
    Mistake(
        "input_overwritten",
        "An argument or the gradient was written over: they belong to others, and backward itself needs x once more.",
        sign=lambda e: any(e.changed(name) for name in ("x", "w1", "b1", "w2", "b2", "dy")),
    ),
    NOT_DIFFERENTIABLE,
    number_of_gradients(),
    Mistake(
        "gradient_missing",
        "One of the five has no gradient: None was returned in its place.",
        sign=lambda e: e.raised("there is no gradient of"),
    ),
    Mistake(
        "weights_transposed",
        "A gradient has the shape of the transposed matrix: dw1 is dhᵀ x, (n, d), and dw2 is dyᵀ a, (d, n).",
        sign=lambda e: e.raised("returned an invalid gradient"),
    ),
)

SLOPE = (
    Mistake(
        "slope_of_erf",
        "The slope is that of GELU with erf, and the forward pass has tanh: close, and off by up to 1e-3.",
        answer=_with(rise=slope_by_erf),
    ),
    Mistake(
        "erf",
        "This is GELU with erf, forward and backward: the exercise asks for the form with tanh.",
        answer=_with(value=by_erf, rise=slope_by_erf),
    ),
    Mistake(
        "inner_derivative_missing",
        "In the slope u' is missing: tanh(u) has the derivative (1 - t^2) u', with "
        "u' = sqrt(2 / pi) (1 + 3 x 0.044715 h^2).",
        answer=_with(rise=partial(slope, inner=False)),
    ),
    Mistake(
        "three_missing",
        "In u' the 3 is missing: the derivative of h^3 is 3 h^2.",
        answer=_with(rise=partial(slope, cube=CUBE / 3)),
    ),
    Mistake(
        "two_missing",
        "The second part of the slope is half of what it should be: h / 2 (1 - t^2) u', which is h s (1 - s) 2u' with "
        "s = (1 + t) / 2.",
        answer=_with(rise=partial(slope, two=1.0)),
    ),
    Mistake(
        "second_part_missing",
        "The slope is (1 + t) / 2 alone: h / 2 times the derivative of t is missing.",
        answer=_with(rise=lambda h: torch.sigmoid(2 * ROOT * (h + CUBE * h**3))),
    ),
    Mistake(
        "first_part_missing",
        "The slope is h / 2 times the derivative of t alone: (1 + t) / 2 is missing.",
        answer=_with(rise=partial(slope, product=False)),
    ),
    Mistake(
        "slope_missing",
        "The gradient passes GELU unchanged: dh = da gelu'(h).",
        answer=_with(rise=torch.ones_like),
    ),
    Mistake(
        "tanh_overflows",
        "NaN where h is large: e^(2u) is infinite there, and (e^(2u) - 1) / (e^(2u) + 1) infinity over infinity. With "
        "e^(-2u), 1 / (1 + e^(-2u)) ends well at both sides.",
        answer=_with(value=overflowing, rise=slope_overflowing),
    ),
    Mistake(
        "slope_at_result",
        "The slope was taken at a: it is gelu'(h), at the pre-activation.",
        answer=_with(rise=lambda h: slope(gelu(h))),
    ),
)

PRODUCTS = (
    Mistake(
        "bias_not_added_again",
        "Backward computes h again without b1: h = x w1ᵀ + b1, as before.",
        answer=_with(again=lambda x, w1, b1: x @ w1.mT),
    ),
    Mistake(
        "first_bias_missing",
        "b1 was not added, in either pass.",
        answer=_with(biased=(False, True)),
    ),
    Mistake(
        "second_bias_missing",
        "b2 was not added.",
        answer=_with(biased=(True, False)),
    ),
    Mistake(
        "dw2_of_h",
        "dw2 was made from h: the second product multiplies a, dw2 = dyᵀ a.",
        answer=_with(of_w2=lambda t: t["dy"].mT @ t["h"]),
    ),
    Mistake(
        "dw1_of_da",
        "dw1 was made from da: the gradient has to pass GELU first, dw1 = dhᵀ x.",
        answer=_with(of_w1=lambda t: t["da"].mT @ t["x"]),
    ),
    Mistake(
        "dx_of_da",
        "dx was made from da: the gradient has to pass GELU first, dx = dh w1.",
        answer=_with(of_x=lambda t: t["da"] @ t["w1"]),
    ),
    Mistake(
        "db1_of_da",
        "db1 was made from da: it is the sum of the rows of dh.",
        answer=_with(of_b1=lambda t: t["da"].sum(0)),
    ),
    Mistake(
        "biases_averaged",
        "db1 and db2 are means over the rows: they are sums.",
        answer=_with(of_b1=lambda t: t["dh"].mean(0), of_b2=lambda t: t["dy"].mean(0)),
    ),
    Mistake(
        "sums_of_one_block",
        "db1 and db2 are those of one block of rows: the sum goes over all of them.",
        answer=_of_one_block,
        variants=tuple((block, last) for block in BLOCKS for last in (True, False)),
    ),
    Mistake(
        "summed_in_fp16",
        "db1 and db2 were added up in 16 bits: over many rows the sum grows and its last bits are lost. Add in fp32, "
        "and round once.",
        sign=_summed_in_half,
    ),
    Mistake(
        "strides_ignored",
        "Right only while the rows of x are adjacent: use `x.stride(0)`.",
        answer=_contiguous("x"),
    ),
    Mistake(
        "strides_ignored_forward",
        "y is wrong where the rows of x lie apart, and the gradients are right: forward, too, uses `x.stride(0)`.",
        answer=lambda v: passes(v) | {"y": _contiguous("x")(v)["y"]},
    ),
    Mistake(
        "strides_ignored_backward",
        "y is right where the rows of x lie apart, and gradients are wrong: backward, too, uses `x.stride(0)`.",
        answer=lambda v, part: passes(v) | {name: _contiguous("x")(v)[name] for name in part},
        variants=(("dx", "dw1", "db1", "dw2"), ("dw1",), ("dx", "db1", "dw2")),
    ),
    Mistake(
        "gradient_strides_ignored",
        "Right only for a contiguous gradient: dy comes with strides of its own, and those of a sum are 0.",
        answer=_contiguous("dy"),
    ),
    Mistake(
        "strides_of_a_sum_ignored",
        "Only db2 is wrong, and only for a gradient that is not contiguous: the sum over rows has to use both strides "
        "of dy.",
        answer=lambda v: passes(v, of_b2=lambda there: _as_if_contiguous(v, "dy").double().sum(0)),
    ),
    Mistake(
        "tf32",
        "The error is what TF32 gives: a product of your own by `tl.dot` keeps 10 fraction bits of its inputs "
        'unless told `input_precision="ieee"`, and the library does where `torch.backends.cuda.matmul.allow_tf32` is '
        "on.",
        sign=_tf32,
    ),
)

MISTAKES = (*AUTOGRAD, *SLOPE, *PRODUCTS)
