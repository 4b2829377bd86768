"""How people multiply with weights in the format wrongly. Blocks are the student's choice, so they come as variants."""

from itertools import product

import torch

from autograder.exercise import Mistake
from autograder.exercises.everywhere import inputs_changed, int32_offset
from autograder.exercises.mx import wrong_decode_formulas as wrong
from autograder.exercises.mx.mxint8 import decode, group_count, spread, value
from autograder.exercises.strides import as_read
from course_lib.numerics import error

NAN = float("nan")
BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
CUTS = (*range(16, 1025, 16), *range(1088, 4096, 64))  # columns at which a sum may be cut


def _out(v, w, x=None) -> dict[str, torch.Tensor]:
    return {"out": (v["x"] if x is None else x).double() @ w.T}


def _of(element):
    """An answer from what becomes of (m, e), and one variant."""
    return lambda v, *variant: _out(v, decode(v, value=lambda m, e: element(m, e, *variant)))


def _at(exponents):
    """An answer from which exponent belongs to an element."""
    return lambda v, *variant: _out(v, decode(v, e=exponents(v, *variant)))


def _scale_after(v, last: bool):
    """One scale for a whole row: that of its first group, or of its last."""
    return _out(v, decode(v, e=(wrong.of_last_group if last else wrong.of_first_group)(v)))


def _some_columns(v, columns: slice):
    return _out(v, decode(v)[:, columns], v["x"][:, columns])


def _tail_of_k(v, block: int):
    k = v["x"].shape[1]
    return _some_columns(v, slice(0, k // block * block)) if k % block else {}


def _cut(v, at: int, last: bool):
    """Only what lies before a column, or only what lies behind it."""
    if at >= v["x"].shape[1]:
        return {}
    return _some_columns(v, slice(at, None) if last else slice(0, at))


def _parts_overlap(v, variant):
    """K in parts, of which each goes on to the end, or to the end of its last block: some columns are added again."""
    split, block, to_the_end = variant
    k = v["x"].shape[1]
    part = -(-group_count(k, block) // split) * block if to_the_end else -(-k // split)
    times = torch.zeros(k, dtype=torch.float64, device=v["x"].device)
    for first in range(0, k, part):
        times[first : None if to_the_end else first + -(-part // block) * block] += 1
    return _out(v, decode(v), v["x"].double() * times) if (times > 1).any() else {}


def _past_k(v, variant):
    """Columns of the last block that are none: of the next row, or of nobody. masked: those of the weights are 0."""
    block, masked = variant
    (n, k), e, group = v["mantissas"].shape, v["exponents"], v["group"]
    wide = -(-k // block) * block
    if wide == k:
        return {}
    x = as_read(v["x"], (len(v["x"]), wide), v["x"].stride())
    m = as_read(v["mantissas"], (n, wide), v["mantissas"].stride())
    m = torch.cat([m[:, :k], torch.zeros_like(m[:, k:])], dim=1) if masked else m
    e = spread(as_read(e, (n, group_count(wide, group)), e.stride()), group, wide)
    e = torch.cat([e[:, :k], torch.zeros_like(e[:, k:])], dim=1) if masked else e
    return _out(v, value(m.long(), e.long()), x)


def _groups_of_32(v, cut: bool):
    """Groups of 32, whatever the group; cut: as many of them as there are groups."""
    w = decode(v, e=wrong.of_32(v))
    columns = slice(0, 32 * v["exponents"].shape[1]) if cut else slice(None)
    return _out(v, w[:, columns], v["x"][:, columns])


def _some_outputs(v, rows=slice(None), columns=slice(None)):
    full = _out(v, decode(v))["out"]
    out = torch.full_like(full, NAN)
    out[rows, columns] = full[rows, columns]
    return {"out": out}


def _first_row(v, repeated: bool):
    """Only the first row of x is multiplied, and written once or into all rows."""
    if len(v["x"]) == 1:
        return {}
    out = _some_outputs(v, rows=slice(0, 1))
    return {"out": out["out"][:1].expand(len(v["x"]), -1)} if repeated else out


def _packed_rows(v, name: str):
    """Rows of x or of the mantissas as far apart as they are long."""
    given = v[name]
    read = as_read(given, given.shape, (given.shape[1], 1))
    return _out(v, decode(v), read) if name == "x" else _out(v, decode(v, m=read))


def _transposed_out(v):
    out = _out(v, decode(v))["out"]
    return {"out": out.T.contiguous().view(out.shape)}


def _integers(v, how: str):
    x = v["x"].double()
    return _out(v, decode(v), {"cut off": x.trunc(), "rounded": x.round()}[how])


def _all_nan(e) -> bool:
    """In every failing case, and not only where some weights are."""
    ran = [t for t in e.failing if t.outcome.error is None]
    outs = [t.outcome.outputs.get("out") for t in ran]
    all_nan = all(isinstance(out, torch.Tensor) and bool(out.isnan().all()) for out in outs)
    return all_nan and any(not bool(t.want["out"].isnan().any()) for t in ran)


def _rounded(e) -> bool:
    """Wrong for fp32 only, and nearly always by no more than rounding to fewer bits explains."""
    failing = [t for t in e.failing if t.outcome.error is None]
    if not failing or any(t.args["x"].dtype != torch.float32 for t in failing):
        return False
    rough = sum(error(t.outcome.outputs["out"], t.want["out"]).rms < 2e-2 for t in failing)
    return rough >= 0.75 * len(e.failing)


MEMORY = (
    int32_offset("a row of weights", "n"),
    Mistake(
        "whole_first",
        "The weights are made whole in memory, and that is multiplied: every weight is read once as it is held, "
        "written, and read again, where the format was to save bytes. Convert what a program has loaded, and multiply "
        "it there.",
        sign=lambda e: e.raised("they are to be multiplied as they are held"),
    ),
    Mistake(
        "not_zeroed",
        "`out` is NaN, as it was before the call: parts were added to what lay there, or nothing was stored. Let each "
        "part of K write into memory of its own, and a second kernel add the parts; or set what you add to to zero "
        "first.",
        sign=lambda e: e.all_failing_unwritten("out"),  # a CPU's sum with NaN has that NaN's bits, a GPU's has others
    ),
    Mistake(
        "nan_throughout",
        "`out` is NaN throughout, and was written: x or e was read past K without `other=0` (0 times NaN is NaN), or "
        "parts were added to what lay in `out` before the call, or the scale is NaN for every exponent.",
        sign=_all_nan,
    ),
    Mistake(
        "output_stride_ignored",
        "Rows of `out` are taken to lie N apart: use `out.stride(0)`.",
        sign=lambda e: e.failed_only("strided output"),
    ),
    Mistake(
        "store_not_masked",
        "Lanes past the last output are stored too: mask the store with `n < N`, and rows with `r < M`.",
        sign=lambda e: e.wrote_outside("out", "after"),
    ),
    inputs_changed("x", "mantissas", "exponents", says="An input was changed."),
    Mistake(
        "x_stride_ignored",
        "Rows of `x` are taken to lie K apart: use `x.stride(0)`.",
        answer=lambda v: _packed_rows(v, "x"),
    ),
    Mistake(
        "mantissa_stride_ignored",
        "Rows of `mantissas` are taken to lie K apart: use `mantissas.stride(0)`.",
        answer=lambda v: _packed_rows(v, "mantissas"),
    ),
    Mistake(
        "output_transposed",
        "The outputs lie in the order of N by M: out[r, n] is at r * stride + n.",
        answer=_transposed_out,
    ),
)

SUMS = (
    Mistake(
        "scale_after_sum",
        "One scale for the sum over all of K, that of a row's first or last group: each group has its own. Scale the "
        "sum of a group, then add the groups.",
        answer=_scale_after,
        variants=(False, True),
    ),
    Mistake(
        "tail_of_k_missing",
        "What is left of K behind the last whole block is not in the sum: walk over `triton.cdiv(K, BLOCK_K)` blocks, "
        "and mask the last.",
        answer=_tail_of_k,
        variants=BLOCKS,
    ),
    Mistake(
        "first_part_only",
        "Only the first part of K is in the sum: walk over all of it, and keep the accumulator.",
        answer=lambda v, at: _cut(v, at, False),
        variants=CUTS,
    ),
    Mistake(
        "last_part_only",
        "Only the last part of K is in the result: the accumulator begins anew, or parts overwrite each other where "
        "they should be added.",
        answer=lambda v, at: _cut(v, at, True),
        variants=CUTS,
    ),
    Mistake(
        "parts_overlap",
        "Parts of K overlap, and their columns are added more than once: a part ends where the next one begins. Where "
        "it is no whole number of blocks, mask its last block by the end of the *part*, or make parts of whole blocks.",
        answer=_parts_overlap,
        variants=tuple(product((2, 3, 4, 8, 16), (16, 32, 64, 128, 256, 512), (True, False))),
    ),
    Mistake(
        "k_not_masked",
        "Columns past K are in the sum: mask the loads along K, those of x too, with `other=0`. (0 times what lies "
        "there may be NaN.)",
        answer=_past_k,
        variants=tuple(product(BLOCKS, (False, True))),
    ),
    Mistake(
        "first_row_only",
        "Only the first row of x is multiplied.",
        answer=_first_row,
        variants=(False, True),
    ),
    Mistake(
        "last_outputs_missing",
        "The last outputs are never written: launch `triton.cdiv(N, BLOCK_N)` programs.",
        answer=lambda v, block: _some_outputs(v, columns=slice(0, len(v["mantissas"]) // block * block)),
        variants=(2, 4, 8, 16, 32, 64, 128),
    ),
    Mistake(
        "x_as_integers",
        "x lost its fraction: an integer product needs x quantised too, with scales of its own. Here the mantissas "
        "become fp32, and x stays what it is.",
        answer=_integers,
        variants=("cut off", "rounded"),
    ),
)

ELEMENTS = (
    Mistake(
        "minus_128",
        "Wrong only where m is -128, whose size does not fit into 7 bits: convert the integer itself.",
        answer=_of(wrong.but_minus_128),
        variants=(0.0, 128.0, -127.0),
    ),
    Mistake(
        "nan_ignored",
        "Groups with the exponent 255 are NaN, and so is every sum that holds one.",
        answer=_of(wrong.but_255),
        variants=("number", "infinity", "zero", "NaN but for 0"),
    ),
    Mistake(
        "fraction_bits",
        "Every output is off by the same power of two: a step is 2^(e - 133).",
        answer=_of(wrong.times),
        variants=(64.0, 2.0, 0.5, 1 / 64),
    ),
    Mistake(
        "unsigned",
        "Negative mantissas were read as unsigned: 256 too large.",
        answer=_of(wrong.unsigned),
    ),
    Mistake(
        "sign_lost",
        "Negative weights became positive.",
        answer=_of(lambda m, e: value(m.abs(), e)),
    ),
    Mistake(
        "signed_exponent",
        "Exponents of 128 and more were read as negative: they are uint8.",
        answer=_of(wrong.signed_exponent),
    ),
    Mistake(
        "correction_never",
        "Weights below 64 steps are too large by 2^(e - 127): bf16 adds an implicit one, which MXINT8 does not have.",
        answer=_of(wrong.packed),
        variants=("never",),
    ),
    Mistake(
        "exponent_by_column",
        "Each column took an exponent of its own: that of column k is number k // group of its row.",
        answer=_at(wrong.by_column),
        variants=(False, True),
    ),
    Mistake(
        "exponent_of_block",
        "All groups of a block of columns have one exponent, that of its first or the largest: each has its own.",
        answer=_at(lambda v, variant: wrong.of_block(v, *variant)),
        variants=tuple(product((*wrong.BLOCKS, 512, 1024), (False, True))),
    ),
    Mistake(
        "exponents_transposed",
        "The exponents are read in the order of columns: that of row n and group g is number n * groups + g.",
        answer=_at(wrong.transposed),
    ),
    Mistake(
        "groups_rounded_down",
        "Wrong from the second row of weights on where the last group is short: a row has `triton.cdiv(K, group)` "
        "exponents.",
        answer=_at(wrong.rounded_down),
    ),
    Mistake(
        "group_of_32",
        "Right for groups of 32 only: the size of a group is an argument.",
        answer=_groups_of_32,
        variants=(False, True),
    ),
    Mistake(
        "exponents_of_first_row",
        "Every row of weights takes the exponents of the first: add n * groups.",
        answer=_at(wrong.of_first_row),
    ),
    Mistake(
        "lower_precision",
        "The error is that of fewer bits: TF32, which `tl.dot` takes for fp32 unless `input_precision='ieee'` says "
        "otherwise, or something rounded to 2 bytes on the way. Sum in fp32.",
        sign=_rounded,
    ),
)

MISTAKES = (*MEMORY, *SUMS, *ELEMENTS)
