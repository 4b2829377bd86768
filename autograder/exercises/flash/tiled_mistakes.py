"""How people write attention in tiles wrongly, in plain PyTorch."""

import torch

from autograder.exercise import Mistake
from autograder.exercises.flash import wrong_forward_formulas as wrong


def _named(answer):
    """The same answer with `out` called o. The block is an argument here, so no variants are needed for it."""

    def renamed(v, *variant):
        return {"o" if name == "out" else name: x for name, x in answer(v, *variant).items()}

    return renamed


def _with_block(answer, *more):
    return lambda v, *variant: answer(v, (v["block"], *more, *variant) if more or variant else v["block"])


def _local_columns(v):
    """Causal: the key's number inside its block is compared, not its number in the row."""
    n_q, n_k = v["q"].shape[2], v["k"].shape[2]
    m, n = torch.arange(n_q, device=v["q"].device)[:, None], torch.arange(n_k, device=v["q"].device)[None, :]
    return wrong.attend(v, see=n % v["block"] <= m + n_k - n_q if v["causal"] else None)


def _scale_after_maximum(v, guarded: bool):
    """`guarded`: a sum of 0 is taken for 1, and not only that of a query without keys."""
    made = wrong.scale_after_maximum(v, (v["block"], False, False, False))
    lost = (made["lse"] == -wrong.INF) & ~wrong.keyless(v)
    return made if guarded else made | {"out": made["out"].masked_fill(lost[..., None], wrong.NAN)}


def _half_scores(v, variant):
    """q kᵀ of fp16 inputs is rounded to fp16; `scaled`: and once more after the scale; `cast`: the weights as well."""
    if v["q"].dtype == torch.float32:
        return {}
    scaled, cast = variant
    s = wrong.scores(v, scale=1.0).to(v["q"].dtype)
    return wrong.attend(v, s=(s * v["scale"]).double() if scaled else s.double() * v["scale"], cast=cast)


def _halves(e) -> bool:
    """Every failing case gave an o of the right type."""
    shown = [(t.outcome.outputs.get("o"), t.args["q"]) for t in e.failing]
    return all(isinstance(o, torch.Tensor) and o.dtype == q.dtype for o, q in shown)


HALF_CASES = ("fp16, a long row", "fp16", "huge scores", "a negative scale")

MISTAKES = (
    Mistake(
        "all_scores_at_once",
        "The scores of all keys were made at once, (n_q, n_k) numbers a head or n_k a query, or attention was called "
        "ready-made. Walk over the keys, `block` at a time, with a running maximum and a running sum.",
        sign=lambda e: e.raised("all scores at once") or e.raised("write the walk over the keys yourself"),
    ),
    Mistake(
        "outside_of_torch",
        "NumPy or lists of Python take over here, and on a GPU they could not. Every step has its function in torch.",
        sign=lambda e: e.raised("was called: compute with torch"),
    ),
    Mistake(
        "half_accumulator",
        "Inf or NaN on a long row of fp16: the accumulator is fp16 and ends at 65504. Keep maximum, sum and "
        "accumulator in fp32, and convert o once, at the end.",
        sign=lambda e: e.failed("fp16, a long row") and e.failed_only(*HALF_CASES) and _halves(e),
    ),
    Mistake(
        "lse_keeps_dimension",
        "lse has one dimension too many: with `keepdim=True` the last one has length 1. `squeeze(-1)` at the end.",
        sign=lambda e: all(getattr(t.outcome.outputs.get("lse"), "ndim", 0) == 4 for t in e.failing),
    ),
    Mistake(
        "nan_without_keys",
        "NaN for queries that see no key: their maximum stays -inf, and -inf - (-inf), or 0 / 0, is NaN. Subtract 0 "
        "while the maximum is -inf, and divide by 1 where the sum is 0.",
        answer=_named(lambda v, lse: wrong.in_keyless_rows(v, torch.tensor(wrong.NAN), lse)),
        variants=(torch.tensor(wrong.NAN), None),
    ),
    Mistake(
        "average_without_keys",
        "Queries that see no key give an average of v: hidden scores were set to a large negative number, so that all "
        "of them equal the maximum. Set them to -inf.",
        answer=_named(lambda v, fill: wrong.finite_for_hidden(v, (fill, None))),
        variants=(-1e9, -1e6, -1e10, -1e4, -3.4028234663852886e38),
    ),
    Mistake(
        "maximum_from_zero",
        "Wrong when every score of a row lies far below zero: the running maximum begins at 0. Begin with -inf.",
        answer=_named(wrong.maximum_from_zero),
        variants=wrong.LOOSE,
    ),
    Mistake(
        "no_maximum",
        "exp overflows or vanishes when scores are large: subtract the running maximum.",
        answer=_named(wrong.no_maximum),
        variants=wrong.LOOSE,
    ),
    Mistake(
        "maximum_before_scale",
        "Wrong for a negative scale: scale * max(q kᵀ) is then the smallest score, and exp overflows. Scale first, "
        "then take the maximum.",
        answer=_named(lambda v, cast: wrong.maximum_before_scale(v, None if cast is None else (v["block"], cast))),
        variants=(False, True, None),
    ),
    Mistake(
        "scale_after_maximum",
        "Wrong when scores are large: the maximum was taken of q kᵀ and the scale came after it, so what is subtracted "
        "is not the maximum of the scaled scores. Scale first, then take the maximum.",
        answer=_named(_scale_after_maximum),
        variants=(True, False),
    ),
    Mistake(
        "lse_without_scale",
        "o is right and lse is not: the maximum of q kᵀ was added, without the scale, to the logarithm of a sum of "
        "scaled exponentials. Scale first, then take the maximum.",
        answer=_named(lambda v: wrong.scale_in_the_exponent(v, 1.0)),
    ),
    Mistake(
        "accumulator_not_rescaled",
        "o is wrong when a later block holds a larger score: before adding, the accumulator must be multiplied with "
        "exp(old maximum - new maximum).",
        answer=_named(lambda v: wrong.online(v, v["block"], rescale_o=False)),
    ),
    Mistake(
        "sum_not_rescaled",
        "The sum is wrong when a later block holds a larger score: before adding, it must be multiplied with "
        "exp(old maximum - new maximum), as the accumulator is.",
        answer=_named(lambda v: wrong.online(v, v["block"], rescale_l=False)),
    ),
    Mistake(
        "nothing_rescaled",
        "Sum and accumulator are wrong when a later block holds a larger score: before adding, multiply both with "
        "exp(old maximum - new maximum).",
        answer=_named(lambda v: wrong.online(v, v["block"], rescale_o=False, rescale_l=False)),
    ),
    Mistake(
        "last_block_dropped",
        "The shorter last block of keys is left out: step through `range(0, n_k, block)`, a slice ends by itself.",
        answer=_named(_with_block(wrong.keys_below(lambda n_q, n_k, block: n_k // block * block))),
    ),
    Mistake(
        "padded_keys_counted",
        "The shorter last block was filled up with zeros, and a score of 0 is not nothing: a slice ends by itself, so "
        "take it as it comes, or set the scores of what was added to -inf.",
        answer=_named(_with_block(wrong.padded_keys)),
    ),
    Mistake(
        "walks_over_queries",
        "Right only for as many keys as queries: the loop runs over n_q numbers and should run over n_k.",
        answer=_named(wrong.keys_below(lambda n_q, n_k: n_q)),
    ),
    Mistake(
        "scale_forgotten",
        "The scores are not scaled: multiply q kᵀ with `scale`.",
        answer=_named(lambda v: wrong.scaled(v, 1.0)),
    ),
    Mistake(
        "scale_hard_coded",
        "The scores are scaled with 1/8 or 1/sqrt(D): `scale` is an argument, and may be another number.",
        answer=_named(lambda v, eighth: wrong.scaled(v, 0.125 if eighth else v["q"].shape[-1] ** -0.5)),
        variants=(True, False),
    ),
    Mistake(
        "scale_twice",
        "The scores are scaled twice.",
        answer=_named(lambda v: wrong.scaled(v, v["scale"] ** 2)),
    ),
    Mistake(
        "causal_ignored",
        "`causal` changes nothing: keys behind the diagonal must be hidden.",
        answer=_named(wrong.all_keys),
    ),
    Mistake(
        "causal_top_left",
        "Causal is right only for as many keys as queries: the diagonal ends at the last key, so query m sees key n "
        "where n <= m + n_k - n_q.",
        answer=_named(wrong.top_left),
    ),
    Mistake(
        "causal_off_by_one",
        "The causal diagonal is off by one key: query m sees key n where n <= m + n_k - n_q, the key itself included.",
        answer=_named(wrong.off_by_one),
        variants=(-1, 1),
    ),
    Mistake(
        "causal_inside_block",
        "Causal is right in the first block of keys only: compare the key's number in the row, start + j, not its "
        "number inside the block.",
        answer=_named(_local_columns),
    ),
    Mistake(
        "lse_without_maximum",
        "lse is the logarithm of the sum alone: the maximum that was subtracted must be added again.",
        answer=_named(wrong.lse_without_maximum),
    ),
    Mistake(
        "lse_in_base_two",
        "lse is a logarithm to the base 2: divide by log2(e), or take the natural one.",
        answer=_named(wrong.lse_in_base_two),
    ),
    Mistake(
        "lse_is_maximum",
        "lse is the maximum alone: add the logarithm of the sum.",
        answer=_named(wrong.lse_is_maximum),
    ),
    Mistake(
        "lse_is_sum",
        "The sum was returned in place of its logarithm plus the maximum.",
        answer=_named(wrong.lse_is_sum),
    ),
    Mistake(
        "not_divided",
        "o is the accumulator: divide it by the sum, once, after the last block.",
        answer=_named(wrong.not_divided),
    ),
    Mistake(
        "each_block_by_itself",
        "Every block is a softmax of its own, and they are averaged: maximum and sum belong to the whole row.",
        answer=_named(lambda v: wrong.each_block_by_itself(v, v["block"])),
    ),
    Mistake(
        "half_scores",
        "Wrong for inputs in fp16 only: q kᵀ was made in their type, and each score was rounded to 11 bits. A score of "
        "100 is then off by up to 0.03. Convert q and k to fp32 before you multiply them.",
        answer=_named(_half_scores),
        variants=((False, False), (True, False), (False, True), (True, True)),
    ),
    Mistake(
        "half_inputs",
        "fp32 inputs were rounded to fp16: compute with them as they are.",
        answer=_named(lambda v, dtype: wrong.inputs_rounded(v, dtype)),
        variants=(torch.float16, torch.bfloat16),
    ),
)
