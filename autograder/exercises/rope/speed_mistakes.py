"""How people turn queries and keys wrongly from one tensor into another."""

import torch

from autograder.exercise import Mistake
from autograder.exercises.everywhere import inputs_changed, none_written
from autograder.exercises.flash.wrong_forward_formulas import rounded_on_the_way
from autograder.exercises.rope import wrong_rotation_formulas as wrong
from autograder.exercises.rope.rotation import turned
from autograder.exercises.rope.wrong_rotation_formulas import BLOCKS, TWO_BYTES
from autograder.exercises.strides import as_read

NAN = float("nan")


def both(change):
    """An answer from what a formula makes of one tensor."""

    def answer(v, *variant):
        return {f"{name}_out": change(v, v[name], *variant) for name in "qk"}

    return answer


def _mixed(mix):
    return both(lambda v, x: turned(v, x, mix=mix))


def _written(v, x, batches=slice(None), heads=slice(None), length=slice(None), columns=slice(None)):
    """The truth there, nothing elsewhere."""
    made = torch.full(x.shape, NAN, dtype=torch.float64, device=x.device)
    place = batches, heads, length, columns
    made[place] = turned(v, x)[place]
    return made


def _unscaled(v, x, block: int):
    rows = -(-x.shape[2] // block) + block - 1
    return _written(v, x, length=slice(0, rows))


def _rest_missing(v, x):
    return _written(v, x, columns=slice(0, 2 * v["cos"].shape[1]))


def _read_contiguous(v, x, heads_inside: bool):
    _, heads, length, head_size = x.shape
    row = heads * head_size
    strides = torch.empty(x.shape, device="meta").stride()
    return turned(v, as_read(x, x.shape, (length * row, head_size, row, 1) if heads_inside else strides))


def _read_like_q(v):
    return {"q_out": turned(v, v["q"]), "k_out": turned(v, as_read(v["k"], v["k"].shape, v["q"].stride()))}


def _k_unwritten(v):
    return {"q_out": turned(v, v["q"]), "k_out": torch.full(v["k"].shape, NAN, dtype=torch.float64)}


_other_layout = both(wrong.other_layout)

MISTAKES = (
    inputs_changed(
        "q", "k", "cos", "sin", says="q, k or a table was changed: the results belong into q_out and k_out."
    ),
    none_written(
        "Neither q_out nor k_out was written. The function fills the tensors it is given; what it returns is not "
        "looked at.",
        "q_out",
        "k_out",
    ),
    Mistake(
        "k_never_written",
        "k_out was not written: k is turned as well.",
        answer=_k_unwritten,
    ),
    Mistake(
        "output_strides_ignored",
        "q_out and k_out are taken to be contiguous, or to have the strides of q and k: use their own.",
        sign=lambda e: e.failed("strided outputs") and e.failed_only("strided outputs", *INPUTS_STRIDED),
    ),
    Mistake(
        "element_stride_ignored",
        "Right only while the elements of a row are adjacent: the last stride need not be 1.",
        sign=lambda e: e.failed_only("elements apart"),
    ),
    Mistake(
        "strides_of_q_for_k",
        "k is read with the strides of q: each tensor has strides of its own.",
        answer=_read_like_q,
    ),
    Mistake(
        "strides_ignored",
        "Right for one layout in memory only: use all four strides of q and of k.",
        answer=both(_read_contiguous),
        variants=(False, True),
    ),
    Mistake(
        "writes_outside",
        "Something is written beyond q_out or k_out: mask rows with offs_s < S and pairs with offs_p < P, and count "
        "the heads of k for k.",
        sign=lambda e: e.wrote_outside("q_out") or e.wrote_outside("k_out"),
    ),
    Mistake(
        "layout_ignored",
        "`layout` changes nothing: for halves the pairs are (x[j], x[j + P]), for interleaved (x[2 j], x[2 j + 1]).",
        sign=lambda e: wrong.layout_ignored(e, _other_layout),
    ),
    Mistake(
        "layouts_swapped",
        "The two layouts are exchanged: halves pairs x[j] with x[j + P], interleaved x[2 j] with x[2 j + 1].",
        answer=_other_layout,
    ),
    *wrong.wrong_signs(_mixed),
    Mistake(
        "partner_of_whole_head",
        "Wrong only where a part of the head is turned: with halves the partner of x[j] is x[j + P], and not "
        "x[j + D / 2].",
        answer=both(wrong.whole_head_partner),
    ),
    Mistake(
        "rest_missing",
        "Wrong only where a part of the head is turned: the D - 2 P elements behind are not turned, but copied.",
        answer=both(_rest_missing),
    ),
    Mistake(
        "tables_by_block",
        "cos and sin are those of the block, not of the row: row s of the head takes row s of the tables.",
        answer=both(wrong.by_block),
        variants=tuple((inside, block) for inside in (True, False) for block in BLOCKS),
    ),
    Mistake(
        "rows_run_on",
        "Positions are counted over the whole batch: each sequence begins at 0. From a flat row number, `row % S` is "
        "the row of its sequence.",
        answer=both(wrong.running_on),
        variants=(False, True),
    ),
    Mistake(
        "last_rows_missing",
        "The last partial block of rows is never written: the grid has triton.cdiv(S, BLOCK) blocks.",
        answer=both(lambda v, x, block: _written(v, x, length=slice(0, x.shape[2] // block * block))),
        variants=BLOCKS,
    ),
    Mistake(
        "first_rows_only",
        "Only the first block of rows is written: launch one program a block.",
        answer=both(lambda v, x, block: _written(v, x, length=slice(0, block))),
        variants=(1, *BLOCKS),
    ),
    Mistake(
        "block_not_scaled",
        "Blocks overlap, and the last rows are missing: block i begins at row i * BLOCK, not at i.",
        answer=both(_unscaled),
        variants=BLOCKS,
    ),
    Mistake(
        "first_head_only",
        "Only the first head is written: launch programs for all heads.",
        answer=both(lambda v, x: _written(v, x, heads=slice(0, 1))),
    ),
    Mistake(
        "tables_in_two_bytes",
        "The error is that of cosines and sines with 2 bytes: keep the tables in fp32.",
        answer=both(wrong.rounded_tables),
        variants=TWO_BYTES,
    ),
    Mistake(
        "lower_precision",
        "fp32 inputs give the error of 2-byte numbers: something was rounded to fp16 or bf16 on the way, perhaps the "
        "tables. Load, convert to fp32, and convert back at the store.",
        sign=rounded_on_the_way,
    ),
)

INPUTS_STRIDED = ("heads side by side", "strided inputs", "elements apart", "fp16", "bf16")
