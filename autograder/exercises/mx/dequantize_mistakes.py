"""How people come back from the format wrongly, each as a formula or as a sign."""

import torch

from autograder.exercise import Mistake
from autograder.exercises.everywhere import inputs_changed, int32_offset, never_written
from autograder.exercises.mx import wrong_decode_formulas as wrong
from autograder.exercises.mx.mxint8 import decode, in_bf16
from autograder.exercises.strides import as_read

NAN = float("nan")


def _of(value):
    """An answer from what becomes of (m, e), and one variant."""
    return lambda v, *variant: {"out": in_bf16(decode(v, value=lambda m, e: value(m, e, *variant)))}


def _at(exponents):
    """An answer from which exponent belongs to an element."""

    def answer(v, *variant):
        if not v["mantissas"].numel():
            return {}
        return {"out": in_bf16(decode(v, e=exponents(v, *variant)))}

    return answer


def _rows_packed(v, of_out: bool):
    """Rows of the mantissas as far apart as they are long, or as those of out."""
    m = v["mantissas"]
    apart = v["out"].stride(0) if of_out else m.shape[1]
    return {"out": in_bf16(decode(v, m=as_read(m, m.shape, (apart, 1))))} if m.numel() else {}


def _kept(v, rows=slice(None), columns=slice(None)):
    out = torch.full(v["mantissas"].shape, NAN, dtype=torch.float64, device=v["mantissas"].device)
    out[rows, columns] = in_bf16(decode(v))[rows, columns]
    return {"out": out}


def _tail(v):
    m, group = v["mantissas"], v["group"]
    return _kept(v, columns=slice(0, m.shape[1] // group * group))


def _of_out(e) -> bool:
    """Wrong only where a stride is not C, and beside its place."""
    strided = e.failed_only("strided output", "strided mantissas") and e.failed("strided output")
    return strided and (e.passed("strided mantissas") or e.wrote_outside("out"))


MEMORY = (
    int32_offset("a row", "row"),
    never_written(
        "`out` was not written at all: the function fills the `out` it is given. What it returns is not looked at.",
        "out",
    ),
    Mistake(
        "output_stride_ignored",
        "Rows of `out` are taken to lie C apart, or as far as those of `mantissas`: use `out.stride(0)`.",
        sign=_of_out,
    ),
    Mistake(
        "store_not_masked",
        "Lanes past the end of a row are stored too: mask the store with `column < columns`.",
        sign=lambda e: e.wrote_outside("out", "after"),
    ),
    inputs_changed("mantissas", "exponents", says="`mantissas` or `exponents` was changed: both are inputs."),
    Mistake(
        "mantissa_stride_ignored",
        "Rows of `mantissas` are taken to lie C apart, or as far as those of `out`: use `mantissas.stride(0)`.",
        answer=_rows_packed,
        variants=(False, True),
    ),
    Mistake(
        "tail_missing",
        "The short last group of a row is never written: a row has `triton.cdiv(C, group)` groups.",
        answer=_tail,
    ),
    Mistake(
        "last_rows_missing",
        "The last rows are never written: the number of programs is rounded down. Use `triton.cdiv`.",
        answer=lambda v, rows: _kept(v, rows=slice(0, len(v["mantissas"]) // rows * rows)),
        variants=(2, 4, 8, 16, 32, 64),
    ),
    Mistake(
        "first_row_only",
        "Only the first row is written: launch programs for all of them.",
        answer=lambda v: _kept(v, rows=slice(0, 1)),
    ),
)

CORNERS = (
    Mistake(
        "packing_trick",
        "The bits were put together without a look at the corners. |-128| has bit 7 and no other, so it decodes to 0. "
        "An exponent of 0 has no implicit one that could be taken away. And 255 means NaN in both formats only when "
        "bits of the fraction are set.",
        answer=_of(wrong.packed),
    ),
    Mistake(
        "minus_128",
        "Wrong only for m = -128, whose size does not fit into 7 bits (and whose absolute value is negative in 8): "
        "widen before you take the size, and give it -2 * 2^(e - 127).",
        answer=_of(wrong.but_minus_128),
        variants=(0.0, 128.0, -127.0, 127.0, -64.0),
    ),
    Mistake(
        "exponent_0",
        "Wrong only where e is 0: it means 2^-133 a step like any other exponent. In bf16 the exponent field 0 has no "
        "implicit one.",
        answer=_of(wrong.but_exponent_0),
        variants=("packed", "zeros"),
    ),
    Mistake(
        "exponent_255",
        "Wrong only where e is 255: that is NaN, for every m.",
        answer=_of(wrong.but_255),
        variants=("number", "infinity", "packed", "zero", "NaN but for 0"),
    ),
    Mistake(
        "scale_by_shift",
        "`e << 23` is 2^(e - 127), but not for all: for 0 it is 0, for 255 infinite. Small exponents need a subnormal "
        "scale, one bit further down in the fraction, and 255 a NaN.",
        answer=_of(wrong.shifted_scale),
        variants=("mantissa", "sixty-fourth"),
    ),
    Mistake(
        "subnormals_flushed",
        "Numbers below 2^-126 became 0: bf16 and fp32 hold them, but a scale made by `exp2`, or one of the bits "
        "`(e - 6) << 23` with what is negative held to 0, does not. Make the scale of bits, with a case for e < 7.",
        answer=_of(wrong.without_subnormals),
        variants=(True, False),
    ),
    Mistake(
        "shift_of_negative",
        "For e < 6, `(e - 6) << 23` shifts a negative number: the scale is -inf or huge. Below 7 set one fraction bit, "
        "`(1 << 16) << e`.",
        answer=_of(wrong.without_case),
        variants=("NaN", "number"),
    ),
    Mistake(
        "infinity_clamped",
        "(-128, 254) is -2^128, past bf16's largest number: it becomes -inf, and is not held to a finite one.",
        answer=_of(wrong.clamped),
    ),
)

BITS = (
    Mistake(
        "correction_always",
        "Too small by 2^(e - 127) where bit 6 of |m| is set: there the implicit one is that bit, and nothing is taken "
        "away.",
        answer=_of(wrong.packed),
        variants=("always",),
    ),
    Mistake(
        "correction_never",
        "Too large by 2^(e - 127) where |m| is below 64: bf16 adds an implicit one, which MXINT8 does not have.",
        answer=_of(wrong.packed),
        variants=("never",),
    ),
    Mistake(
        "correction_without_sign",
        "Wrong for negative mantissas above -64: the one that is taken away has the sign of the number.",
        answer=lambda v: {"out": in_bf16(decode(v, value=lambda m, e: wrong.packed(m, e, signed=False)))},
    ),
    Mistake(
        "fraction_bits",
        "Off by a power of two: mantissas have 6 fraction bits and exponents a bias of 127, so a step is 2^(e - 133).",
        answer=_of(wrong.times),
        variants=(64.0, 2.0, 0.5, 1 / 64, 128.0),
    ),
    Mistake(
        "unsigned",
        "Negative mantissas come out 256 steps too large: int8 was read as unsigned.",
        answer=_of(wrong.unsigned),
    ),
    Mistake(
        "sign_and_size",
        "Negative mantissas are wrong: an int8 is two's complement, and its low seven bits are not the size.",
        answer=_of(wrong.sign_and_size),
    ),
    Mistake(
        "sign_lost",
        "Negative mantissas became positive.",
        answer=_of(lambda m, e: wrong.value(m.abs(), e)),
    ),
    Mistake(
        "scale_in_8_bits",
        "The scale was made in 8 bits, of which `<< 23` leaves 0: widen e to int32 before you shift.",
        answer=_of(wrong.in_8_bits),
        variants=("NaN", "zero"),
    ),
    Mistake(
        "signed_exponent",
        "Exponents of 128 and more were read as negative numbers: they are uint8.",
        answer=_of(wrong.signed_exponent),
    ),
    Mistake(
        "half_precision",
        "Numbers are 0 or infinite that should not be: fp16 holds 2^-24 to 65504. fp32 has the range of bf16.",
        answer=_of(wrong.in_fp16),
    ),
)

GROUPS = (
    Mistake(
        "exponent_by_column",
        "Each column took an exponent of its own: that of column c is number c // group of its row.",
        answer=_at(wrong.by_column),
        variants=(False, True),
    ),
    Mistake(
        "exponent_of_block",
        "All groups of a block have the exponent of its first: load one for each group.",
        answer=_at(wrong.of_block),
        variants=wrong.BLOCKS,
    ),
    Mistake(
        "exponent_of_first_group",
        "All groups of a row have the exponent of its first.",
        answer=_at(wrong.of_first_group),
    ),
    Mistake(
        "exponents_transposed",
        "The exponents are read in the order of columns: that of row r and group g is number r * groups + g.",
        answer=_at(wrong.transposed),
    ),
    Mistake(
        "groups_rounded_down",
        "Wrong from the second row on where the last group is short: a row has `triton.cdiv(C, group)` exponents, and "
        "not C // group.",
        answer=_at(wrong.rounded_down),
    ),
    Mistake(
        "group_of_32",
        "Right for groups of 32 only: the size of a group is an argument.",
        answer=_at(wrong.of_32),
    ),
    Mistake(
        "across_rows",
        "Groups run on from one row into the next: each row begins with a group of its own.",
        answer=_at(wrong.across_rows),
    ),
    Mistake(
        "exponents_of_first_row",
        "Every row takes the exponents of the first: add row * groups.",
        answer=_at(wrong.of_first_row),
    ),
)

MISTAKES = (*MEMORY, *CORNERS, *BITS, *GROUPS)
