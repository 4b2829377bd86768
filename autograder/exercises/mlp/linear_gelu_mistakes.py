"""Wrong products with GELU, as formulas or as signs. Mistakes in the product alone are those of roofline.matmul."""

import math
from functools import partial
from itertools import product

import torch

from autograder.exercise import Mistake
from autograder.exercises.everywhere import OUT_NEVER_WRITTEN, int32_offset, output_stride_ignored
from autograder.exercises.mlp import gelu as forms
from autograder.exercises.mlp.gelu import gelu
from autograder.exercises.roofline.matmul_mistakes import BLOCKS
from autograder.exercises.roofline.matmul_mistakes import MISTAKES as OF_PRODUCTS
from autograder.exercises.strides import as_read
from course_lib.numerics import error


def before_gelu(v, dtype=torch.float64, x=None, w=None, biased=True) -> torch.Tensor:
    """h, with other matrices in place of x and w if given."""
    x, w = v["x"] if x is None else x, v["w"] if w is None else w
    h = x.to(dtype) @ w.to(dtype).mT
    return h + _bias(v).to(dtype) if biased else h


def _bias(v) -> torch.Tensor:
    return v["bias"].double() if v["bias"] is not None else torch.zeros(len(v["w"]), device=v["w"].device).double()


def _of_h(form):
    """An answer from what becomes of h."""
    return lambda v: {"out": form(before_gelu(v))}


def _of_product(name: str, says: str) -> Mistake:
    """A mistake in the product, as unit 01 has it: of a (M, K) and b (K, N)."""
    found = next(m for m in OF_PRODUCTS if m.name == name)

    def answer(v, *variant):
        made = found.answer({"a": v["x"], "b": v["w"].mT, "out": v["out"]}, *variant)["out"]
        return {"out": gelu(made.double() + _bias(v))}

    return Mistake(name, says, answer=answer, variants=found.variants)


def _rounded_first(v):
    return {"out": gelu(before_gelu(v).to(v["x"].dtype).double())}


def _parts(v, block: int) -> list[torch.Tensor]:
    """The product of every block of K."""
    x, w = v["x"].double(), v["w"].double()
    return [x[:, k : k + block] @ w[:, k : k + block].mT for k in range(0, x.shape[1], block)]


def _gelu_in_the_loop(v, variant):
    """GELU of each block's product or of the running sum; the bias is added first or at the end."""
    block, running, bias_first = variant
    acc = torch.zeros(len(v["x"]), len(v["w"]), dtype=torch.float64, device=v["x"].device)
    acc = acc + _bias(v) if bias_first else acc
    for part in _parts(v, block):
        acc = gelu(acc + part) if running else acc + gelu(part)
    return {"out": acc if bias_first else acc + _bias(v)}


def _bias_in_the_loop(v, block: int):
    return {"out": gelu(before_gelu(v, biased=False) + len(_parts(v, block)) * _bias(v))}


def _bias_by_rows(v):
    if v["bias"] is None:
        return {}
    by_row = as_read(v["bias"], (len(v["x"]),), (1,)).double()
    return {"out": gelu(before_gelu(v, biased=False) + by_row[:, None])}


def _first_bias(v):
    return {"out": gelu(before_gelu(v, biased=False) + _bias(v)[:1])}


def _weight_as_k_by_n(v):
    return {"out": gelu(before_gelu(v, w=as_read(v["w"], v["w"].shape, (1, len(v["w"])))))}


def _read_as(strides):
    """x, w or both read with other strides than they have."""

    def answer(v, which):
        read = {name: as_read(v[name], v[name].shape, strides(v[name])) for name in which}
        return {"out": gelu(before_gelu(v, **read))}

    return answer


def _as_if_h_were_rounded(e, few: float, many: float, wider=True) -> bool:
    """Wrong in two-byte inputs only, by `few` to `many` times what rounding h alone would do.

    wider: also where out is wider than the inputs.
    """
    shows = "large partial sums" if wider else "fp16, h far below 0"
    if not e.failed(shows) or not e.failed_only(*(SIXTEEN_BITS if wider else TO_SIXTEEN_BITS)):
        return False
    worst = 0.0
    for t in e.failing:
        if t.outcome.error is None:
            known = error(_rounded_first(t.args)["out"], t.want["out"]).rms
            worst = max(worst, error(t.outcome.outputs["out"], t.want["out"]).rms / known)
    return few < worst <= many


EITHER = (("x", "w"), ("x",), ("w",))
TO_SIXTEEN_BITS = ("fp16", "fp16, h far below 0", "bf16", "bf16, h far below 0", "large", "offsets past 2^31")
SIXTEEN_BITS = (*TO_SIXTEEN_BITS, "fp16 in, fp32 out", "bf16 in, fp32 out", "large partial sums")

PLACES = (
    int32_offset("a row", "offs_m"),
    output_stride_ignored("N"),
    next(m for m in OF_PRODUCTS if m.name == "no_mask_on_store"),
    OUT_NEVER_WRITTEN,
    Mistake(
        "no_bias_not_allowed",
        "Only the call without a bias fails: where `bias` is None there is nothing to load and nothing to add.",
        sign=lambda e: e.failed_only("no bias"),
    ),
)

ACTIVATION = (
    Mistake(
        "gelu_after_cast",
        "The pre-activation h was rounded to the type of x before GELU: apply GELU to the accumulator in fp32 and "
        "convert once, at the store.",
        sign=lambda e: _as_if_h_were_rounded(e, 0.5, 2.0),
    ),
    Mistake(
        "gelu_after_cast_to_out",
        "Right where out is fp32. Where it has two bytes, the pre-activation h was rounded to its type before GELU, "
        "and where h is below -1.2 GELU magnifies that: apply it to the accumulator in fp32 and convert once, at the "
        "store.",
        sign=lambda e: _as_if_h_were_rounded(e, 0.5, 2.0, wider=False),
    ),
    Mistake(
        "accumulator_in_input_type",
        "Wrong where partial sums grow large in between: the accumulator is rounded to the type of x every turn. "
        "Accumulate in fp32.",
        sign=lambda e: _as_if_h_were_rounded(e, 2.0, math.inf),
    ),
    Mistake(
        "erf",
        "This is GELU with erf: close, and off by up to 5e-4. The exercise asks for the form with tanh.",
        answer=_of_h(forms.by_erf),
    ),
    Mistake(
        "sigmoid_1702",
        "This is h sigmoid(1.702 h), a coarser relative of GELU: the exercise asks for the form with tanh.",
        answer=_of_h(forms.by_sigmoid),
    ),
    Mistake(
        "no_gelu",
        "The output is h itself: GELU is missing.",
        answer=_of_h(lambda h: h),
    ),
    Mistake(
        "cube_missing",
        "The cubic term is missing: tanh(sqrt(2 / pi) (h + 0.044715 h^3)).",
        answer=_of_h(partial(gelu, cube=0.0)),
    ),
    Mistake(
        "square_for_cube",
        "0.044715 stands before h^2: it is h^3.",
        answer=_of_h(lambda h: h * torch.sigmoid(2 * forms.ROOT * (h + forms.CUBE * h**2))),
    ),
    Mistake(
        "bracket_closed_early",
        "The bracket closes too early: sqrt(2 / pi) multiplies h + 0.044715 h^3, both of them.",
        answer=_of_h(lambda h: h * torch.sigmoid(2 * (forms.ROOT * h + forms.CUBE * h**3))),
    ),
    Mistake(
        "two_missing",
        "In 1 / (1 + e^(-2u)) the 2 is missing: (1 + tanh u) / 2 is that, with 2u and not u.",
        answer=_of_h(partial(gelu, root=forms.ROOT / 2)),
    ),
    Mistake(
        "root_wrong",
        "The factor inside tanh is not sqrt(2 / pi) = 0.79788: it was 2 / pi, sqrt(pi / 2) or 1.",
        answer=lambda v, root: {"out": gelu(before_gelu(v), root=root)},
        variants=(forms.ROOT**2, 1 / forms.ROOT, 1.0),
    ),
    Mistake(
        "half_missing",
        "Everything is twice as large: GELU is h / 2 times (1 + tanh u).",
        answer=_of_h(partial(gelu, half=1.0)),
    ),
    Mistake(
        "tanh_overflows",
        "NaN where h is large: (e^(2u) - 1) / (e^(2u) + 1) is infinity over infinity past u = 44. Write it with an "
        "exponential that goes to 0 there, 1 - 2 / (e^(2u) + 1), or h / (1 + e^(-2u)).",
        answer=_of_h(forms.overflowing),
    ),
    Mistake(
        "gelu_in_the_loop",
        "GELU was applied to every block of K: it is not linear, so it has to wait until the sum is complete.",
        answer=_gelu_in_the_loop,
        variants=tuple(product(BLOCKS, (False, True), (False, True))),
    ),
)

BIAS = (
    Mistake(
        "bias_after_gelu",
        "The bias was added after GELU: it belongs to h, gelu(x wᵀ + bias).",
        answer=lambda v: {"out": gelu(before_gelu(v, biased=False)) + _bias(v)},
    ),
    Mistake(
        "bias_missing",
        "The bias was not added.",
        answer=lambda v: {"out": gelu(before_gelu(v, biased=False))},
    ),
    Mistake(
        "empty_sum_is_zero",
        "Where K is 0, out is 0: the sum is empty, so that h is the bias, and out is GELU of it.",
        answer=lambda v: {} if v["x"].shape[1] else {"out": torch.zeros_like(v["out"], dtype=torch.float64)},
    ),
    Mistake(
        "bias_in_the_loop",
        "The bias was added once for every block of K: add it once, before the loop or after it.",
        answer=_bias_in_the_loop,
        variants=BLOCKS,
    ),
    Mistake(
        "bias_by_rows",
        "The bias goes with the rows: it belongs to the columns of out, `bias[None, :]`.",
        answer=_bias_by_rows,
    ),
    Mistake(
        "first_bias_for_all",
        "Every column has the bias of the first: load `bias_ptr + offs_n`.",
        answer=_first_bias,
    ),
)

PRODUCT = (
    _of_product(
        "tf32",
        "The error is what TF32 gives: `tl.dot` of fp32 keeps 10 fraction bits of its inputs by default. The exercise "
        'asks for `tl.dot` with `input_precision="ieee"`.',
    ),
    Mistake(
        "weight_as_k_by_n",
        "w was read as (K, N), row by row: nn.Linear keeps (N, K), so a step along K is `w.stride(1)` and a step along "
        "N `w.stride(0)`.",
        answer=_weight_as_k_by_n,
    ),
    _of_product(
        "strides_swapped",
        "The two strides of a matrix are the wrong way round: of w (N, K) the first belongs to N and the second to K.",
    ),
    Mistake(
        "strides_ignored",
        "Right for contiguous matrices only: use all four strides of `x` and `w`.",
        answer=_read_as(lambda t: (t.shape[1], 1)),
        variants=EITHER,
    ),
    Mistake(
        "column_stride_ignored",
        "Right only while the elements of a row are adjacent: a transposed view has another column stride.",
        answer=_read_as(lambda t: (t.stride(0), 1)),
        variants=EITHER,
    ),
    _of_product(
        "accumulator_reset",
        "Only the last block of K counts: the accumulator is set anew in every turn. Start it before the loop, and "
        "add.",
    ),
    _of_product(
        "k_tail_dropped",
        "The last partial block of K is left out: the loop makes `K // BLOCK_K` turns. It takes `tl.cdiv(K, BLOCK_K)` "
        "and a mask.",
    ),
    _of_product(
        "k_tail_unmasked",
        "Wrong when K is not a multiple of BLOCK_K: lanes past K are read from what lies behind. Mask both loads along "
        "K with what is left, `offs_k < K - k`, and `other=0.0`.",
    ),
    _of_product(
        "pointers_not_advanced",
        "Every turn of the loop reads the same block of K: both pointers must move by BLOCK_K times their stride.",
    ),
    _of_product(
        "grid_rounds_down",
        "The last partial tiles are never computed: use `triton.cdiv` for the grid, along M and along N.",
    ),
    _of_product(
        "program_ids_swapped",
        "Tiles are missing when M and N differ: the grid counts tiles of M first, the kernel tiles of N.",
    ),
)

MISTAKES = (*PLACES, *BIAS, *ACTIVATION, *PRODUCT)


def wrong_pre_activations(output: str, wrong: torch.Tensor, args) -> str:
    """Which pre-activations have wrong results, where that says something."""
    if wrong.shape != args["out"].shape or not wrong.any() or wrong.all():
        return ""
    h = before_gelu(args).to(wrong.device)
    bad, good = h[wrong], h[~wrong]
    if bad.min() > good.max():
        return f"only where h is above {good.max():.3g}, and everywhere there"
    if bad.max() < good.min():
        return f"only where h is below {good.min():.3g}, and everywhere there"
    if bool((bad < 0).all()):
        return "only where h is negative"
    return "only where h is positive" if bool((bad > 0).all()) else ""
