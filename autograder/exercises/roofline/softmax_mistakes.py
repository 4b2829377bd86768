"""Wrong row softmaxes, each as a formula or as a sign. Blocks are the student's choice, so they come as variants."""

import torch

from autograder.exercise import Mistake
from autograder.exercises.everywhere import (
    OUT_NEVER_WRITTEN,
    int32_offset,
    mask_on_load_only,
    no_mask,
    output_stride_ignored,
    x_changed,
)
from autograder.exercises.strides import as_read
from course_lib.numerics import error

NAN = float("nan")
BLOCKS = tuple(2**k for k in range(4, 14))
ROWS_A_PROGRAM = (2, 4, 8, 16, 32, 64)


def softmax_rows(x: torch.Tensor) -> torch.Tensor:
    """Softmax of the last dimension in the type of x; a row of only -inf gives zeros."""
    top = x.amax(dim=-1, keepdim=True)
    e = torch.exp(x - torch.where(top.isinf(), 0.0, top))
    total = e.sum(dim=-1, keepdim=True)
    return e / torch.where(total == 0, 1.0, total)


def _divided(e: torch.Tensor, empty: str = "nan") -> torch.Tensor:
    """e over its sum; a sum of 0 gives NaN, or zeros where the student caught that."""
    total = e.sum(dim=-1, keepdim=True)
    return e / (torch.where(total == 0, 1.0, total) if empty == "zero" else total)


def _padding(width: int, block: int | None) -> int:
    """Lanes past the end of a row: of the last of several blocks, or of one block that holds the row."""
    return -width % (block or 1 << (width - 1).bit_length())


def _padded(v, fill: float, block: int | None):
    """Lanes past the end count as `fill`."""
    x = v["x"].float()
    pad = x.new_full((x.shape[0], _padding(x.shape[1], block)), fill)
    return {"out": softmax_rows(torch.cat([x, pad], dim=1))[:, : x.shape[1]]}


def _neighbours(v, block: int | None):
    """Lanes past the end are read from whatever lies there: the next row, or nothing that is ours."""
    rows, width = v["x"].shape
    wider = as_read(v["x"], (rows, width + _padding(width, block)), v["x"].stride())
    return {"out": softmax_rows(wider.float())[:, :width]}


def _first_block(v, block: int):
    out = torch.full(v["x"].shape, NAN, device=v["x"].device)
    out[:, :block] = softmax_rows(v["x"][:, :block].float())
    return {"out": out}


def _not_rescaled(v, block: int):
    """The sum of earlier blocks keeps the maximum it was made with."""
    x = v["x"].float()
    top = x.new_full((x.shape[0], 1), -float("inf"))
    total = torch.zeros_like(top)
    for part in x.split(block, dim=1):
        top = torch.maximum(top, part.amax(dim=1, keepdim=True))
        total = total + torch.exp(part - torch.where(top.isinf(), 0.0, top)).sum(dim=1, keepdim=True)
    e = torch.exp(x - torch.where(top.isinf(), 0.0, top))
    return {"out": e / torch.where(total == 0, 1.0, total)}


def _nan_first_block(v, variant):
    """-inf minus -inf while nothing but -inf has been seen; some guard the row of only -inf in the end."""
    block, guarded = variant
    x = v["x"].float()
    out = softmax_rows(x)
    lost = x[:, :block].isneginf().all(dim=1)
    if guarded:
        lost &= ~x.isneginf().all(dim=1)
    out[lost] = NAN
    return {"out": out}


def _rows_only(v, rows: slice):
    out = torch.full(v["x"].shape, NAN, device=v["x"].device)
    out[rows] = softmax_rows(v["x"].float())[rows]
    return {"out": out}


def _slightly_off(e) -> bool:
    """Failing results have about three right digits, but for numbers so large that rounding moves the maximum."""
    ordinary = [t for t in e.failing if t.case.name not in ("large magnitudes", "very negative rows")]
    if not ordinary or any(t.outcome.error for t in ordinary):
        return False
    return all(error(t.outcome.outputs["out"], t.want["out"]).rms < 5e-3 for t in ordinary)


def _one_shift(v, top: torch.Tensor, empty: str):
    return {"out": _divided(torch.exp(v["x"].float() - top), empty)}


def _max_in_one_place(v):
    x = v["x"].float()
    return {"out": torch.exp(x - x.amax(dim=1, keepdim=True)) / torch.exp(x).sum(dim=1, keepdim=True)}


def _scaled_first(v):
    y = v["x"].float() * 1.4426950408889634
    top = y.amax(dim=1, keepdim=True)
    return {"out": _divided(torch.exp2(y - torch.where(top.isinf(), 0.0, top)), "zero")}


def _shifted(v, sign: float = 1.0, base=torch.exp):
    """base(x - max) with a sign and another base."""
    x = v["x"].float()
    top = x.amax(dim=1, keepdim=True)
    return base(sign * (x - torch.where(top.isinf(), 0.0, top)))


def _epsilon(v, eps: float):
    e = _shifted(v)
    return {"out": e / (e.sum(dim=1, keepdim=True) + eps)}


STRIDED = ("strided rows", "strided output", "offsets past 2^31")

MISTAKES = (
    int32_offset("a row", "tl.program_id(0)"),
    output_stride_ignored("`width`"),
    Mistake(
        "output_stride_of_input",
        "The row stride of `x` is used for `out` too: each tensor has a row stride of its own.",
        sign=lambda e: e.failed_only(*STRIDED) and e.failed("strided rows") and e.wrote_outside("out"),
    ),
    no_mask(
        "The kernel reads and writes past the end of a row when its width is not a power of two. Give the load "
        "`mask=offs < width, other=-float('inf')` and the store the same mask."
    ),
    mask_on_load_only(
        "The load is masked but the store is not: lanes past the end write into the next row, and behind the last. "
        "Give the store the same mask as the load."
    ),
    x_changed("the result belongs into `out`"),
    OUT_NEVER_WRITTEN,
    Mistake(
        "nan_for_empty_row",
        "Right but for rows that hold only -inf: they give NaN (as in torch), the exercise wants zeros. "
        "-inf minus -inf is NaN: what should be subtracted from such a row?",
        answer=lambda v: {"out": torch.softmax(v["x"].float(), dim=1)},
    ),
    Mistake(
        "uniform_for_empty_row",
        "Rows that hold only -inf give 1 / width, the exercise wants zeros: -inf was replaced by a finite number, "
        "so every element equals the maximum.",
        answer=lambda v: {"out": softmax_rows(v["x"].float().clamp(min=-1e9))},
    ),
    Mistake(
        "zeros_for_any_inf",
        "A row with a single -inf gives zeros: only a row that holds nothing else should.",
        answer=lambda v: {"out": softmax_rows(v["x"].float()) * ~v["x"].isneginf().any(dim=1, keepdim=True)},
    ),
    Mistake(
        "nan_from_empty_block",
        "NaN when a row begins with a block of -inf: the running maximum is still -inf there, and -inf minus -inf is "
        "NaN. Subtract 0 while the maximum is -inf.",
        answer=_nan_first_block,
        variants=tuple((block, guarded) for block in BLOCKS for guarded in (False, True)),
    ),
    Mistake(
        "max_from_zero",
        "Wrong when every element of a row is far below zero: the maximum began at 0, or lanes past the end took part "
        "in it with 0. Begin with -inf, and load with `other=-float('inf')`.",
        answer=lambda v, empty: _one_shift(v, v["x"].float().amax(dim=1, keepdim=True).clamp(min=0.0), empty),
        variants=("nan", "zero"),
    ),
    Mistake(
        "padding_counted",
        "Lanes past the end of the row are in the sum: they were loaded as 0, and exp(0 - max) is not 0. "
        "Load with `other=-float('inf')`.",
        answer=lambda v, block: _padded(v, 0.0, block),
        variants=(None, *BLOCKS),
    ),
    Mistake(
        "no_other",
        "Rows are NaN or random when the width is no power of two: lanes past the end of a load hold anything unless "
        "`other` says what. Load with `other=-float('inf')`.",
        answer=lambda v, block: _padded(v, NAN, block),
        variants=(None, *BLOCKS),
    ),
    Mistake(
        "padding_minus_ten_thousand",
        "Wrong when a row lies near -1e4: lanes past the end were filled with a finite number that is not small "
        "enough. Load with `other=-float('inf')`.",
        answer=lambda v, block: _padded(v, -1e4, block),
        variants=(None, *BLOCKS),
    ),
    Mistake(
        "no_mask_on_load",
        "The store is masked but the load is not: the next row, or what lies behind the last, is in the maximum and "
        "the sum. Give the load `mask=offs < width, other=-float('inf')`.",
        answer=_neighbours,
        variants=(None, *BLOCKS),
    ),
    Mistake(
        "no_max",
        "exp overflows or vanishes when the numbers are large: subtract the row's maximum first.",
        answer=lambda v, empty: _one_shift(v, torch.zeros((), device=v["x"].device), empty),
        variants=("nan", "zero"),
    ),
    Mistake(
        "max_of_all_rows",
        "One maximum was used for the whole matrix: rows far below it vanish. Each row has its own.",
        answer=lambda v, empty: _one_shift(v, v["x"].float().max(), empty) if v["x"].numel() else {},
        variants=("nan", "zero"),
    ),
    Mistake(
        "max_in_numerator_only",
        "The maximum was subtracted in the numerator only: the sum must be of the same exponentials.",
        answer=lambda v: _max_in_one_place(v),
    ),
    Mistake(
        "not_rescaled",
        "The sum is wrong when a later block holds a larger maximum: what was summed before must be multiplied with "
        "exp(old max - new max).",
        answer=_not_rescaled,
        variants=BLOCKS,
    ),
    Mistake(
        "normalised_by_block",
        "Every block of columns sums to one by itself: maximum and sum belong to the whole row.",
        answer=lambda v, b: {"out": torch.cat([softmax_rows(p) for p in v["x"].float().split(b, dim=1)], dim=1)},
        variants=BLOCKS,
    ),
    Mistake(
        "first_block_only",
        "Only the first block of columns is computed: either the block holds the widest row (16384), or a loop walks "
        "over it.",
        answer=_first_block,
        variants=BLOCKS,
    ),
    Mistake(
        "input_stride_ignored",
        "The rows of `x` are taken to lie `width` apart: use `x.stride(0)`.",
        answer=lambda v: {"out": softmax_rows(as_read(v["x"], v["x"].shape, (v["x"].shape[1], 1)).float())},
    ),
    Mistake(
        "input_stride_of_output",
        "The row stride of `out` is used for `x` too: each tensor has a row stride of its own.",
        answer=lambda v: {"out": softmax_rows(as_read(v["x"], v["x"].shape, v["out"].stride()).float())},
    ),
    Mistake(
        "first_row_only",
        "Only the first row is computed: launch one program a row, and let each find its row with `tl.program_id(0)`.",
        answer=lambda v: _rows_only(v, slice(0, 1)),
    ),
    Mistake(
        "last_rows_missing",
        "The last rows are never computed: the grid rounds down. Use `triton.cdiv(rows, ROWS)` programs.",
        answer=lambda v, r: _rows_only(v, slice(0, v["x"].shape[0] // r * r)),
        variants=ROWS_A_PROGRAM,
    ),
    Mistake(
        "program_id_not_scaled",
        "Programs overlap: program p starts at row p, not at p * ROWS.",
        answer=lambda v, r: _rows_only(v, slice(0, -(-v["x"].shape[0] // r) + r - 1)),
        variants=ROWS_A_PROGRAM,
    ),
    Mistake(
        "wrong_axis",
        "Columns sum to one instead of rows: reduce over the elements of a row.",
        answer=lambda v: {"out": softmax_rows(v["x"].float().T).T} if v["x"].numel() else {},
    ),
    Mistake(
        "not_normalised",
        "These are exponentials, not yet divided by their sum.",
        answer=lambda v: {"out": _shifted(v)},
    ),
    Mistake(
        "logarithm",
        "This is the logarithm of the softmax.",
        answer=lambda v: {"out": torch.log_softmax(v["x"].float(), dim=1)},
    ),
    Mistake(
        "sign_flipped",
        "Large elements get small shares: the exponent is x - max, not max - x.",
        answer=lambda v: {"out": _divided(_shifted(v, sign=-1.0))},
    ),
    Mistake(
        "base_two",
        "This is a softmax to the base 2: `tl.exp2` needs its argument multiplied with log2(e).",
        answer=lambda v: {"out": _divided(_shifted(v, base=torch.exp2), "zero")},
    ),
    Mistake(
        "scaled_before_subtracting",
        "Large numbers lose digits: x * log2(e) was rounded before the maximum was subtracted. Subtract, then scale.",
        answer=_scaled_first,
    ),
    Mistake(
        "epsilon_in_sum",
        "Every row sums to a little less than one: a constant was added to the sum. Treat the empty row by itself.",
        answer=_epsilon,
        variants=(1e-5, 1e-4, 1e-3, 1e-2),
    ),
    Mistake(
        "half_precision",
        "Something was rounded to fp16 on the way: compute in fp32 and round once, to the type of `out`.",
        sign=_slightly_off,
    ),
)
