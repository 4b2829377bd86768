"""How people quantise wrongly, each as a formula or as a sign."""

import torch

from autograder.exercise import Mistake
from autograder.exercises.everywhere import int32_offset, none_written
from autograder.exercises.mx import wrong_encode_formulas as wrong
from autograder.exercises.mx.mxint8 import (
    encode,
    nearest,
)

MEMORY = (
    int32_offset("a row", "row"),
    none_written(
        "Neither output was written: the function fills the `mantissas` and `exponents` it is given.",
        "mantissas",
        "exponents",
    ),
    Mistake(
        "mantissa_stride_ignored",
        "Rows of `mantissas` are taken to lie C apart: use `mantissas.stride(0)`.",
        sign=lambda e: e.failed_only("strided mantissas"),
    ),
    Mistake(
        "store_not_masked",
        "Lanes past the end of a row are stored too: mask the store of the mantissas with `column < columns`, and that "
        "of the exponents with the number of groups.",
        sign=lambda e: e.wrote_outside("mantissas", "after") or e.wrote_outside("exponents", "after"),
    ),
    Mistake(
        "x_changed",
        "`x` was changed: it is an input.",
        sign=lambda e: e.changed("x"),
    ),
    Mistake(
        "row_stride_ignored",
        "Rows of `x` are taken to lie C apart: use `x.stride(0)`.",
        answer=wrong.rows_packed,
    ),
    Mistake(
        "stride_of_mantissas_for_x",
        "The row stride of `mantissas` is used for `x` too: each tensor has one of its own.",
        answer=wrong.stride_of_mantissas,
    ),
    Mistake(
        "groups_rounded_down",
        "Exponents are wrong from the second row on where the last group is short: that of row r and group g belongs "
        "at r * triton.cdiv(C, group) + g, and not at r * (C // group) + g.",
        sign=wrong.rows_too_near,
    ),
    Mistake(
        "exponents_transposed",
        "The exponents lie in the order of columns: that of row r and group g belongs to r * groups + g.",
        answer=wrong.transposed,
    ),
)

MANTISSAS = (
    Mistake(
        "cut_off",
        "Mantissas are cut off and not rounded: a conversion to an integer drops the fraction. Round to nearest first.",
        answer=lambda v, how: encode(v, mantissa=wrong.CUT[how]),
        variants=tuple(wrong.CUT),
    ),
    Mistake(
        "ties_not_to_even",
        "Wrong only halfway between two mantissas: `floor(y + 0.5)` takes ties up, the rule is to the even one. Adding "
        "1.5 * 2^23 and taking it away again rounds as fp32 does, to even.",
        answer=lambda v, how: encode(v, mantissa=wrong.TIES[how]),
        variants=tuple(wrong.TIES),
    ),
    Mistake(
        "wraps_past_127",
        "127.5 and more round to 128, which an int8 does not hold: 128 became -128. Hold m to +-127 before it is "
        "converted.",
        answer=lambda v, low: encode(v, mantissa=lambda y: wrong.wrapped(y.round().clamp(min=low))),
        variants=(-128, -127),
    ),
    Mistake(
        "minus_128_kept",
        "-127.5 and less round to -128, and stay there: m is held to +-127 on both sides. (The size of an int8 that is "
        "-128 is -128 again: take sizes before converting.)",
        answer=wrong.encoded(mantissa=lambda y: y.round().clamp(-128, 127)),
    ),
    Mistake(
        "fraction_bits",
        "Mantissas are off by a power of two: the largest of a group lies between 64 and 127, so x is divided by "
        "2^(e - 133).",
        answer=lambda v, bits: encode(v, bits=bits),
        variants=(4, 5, 7, 8),
    ),
    Mistake(
        "sign_lost",
        "Mantissas have lost their sign: sizes are for the exponent only.",
        answer=wrong.encoded(mantissa=lambda y: nearest(y.abs())),
    ),
    Mistake(
        "scale_overflows",
        "Wrong only for very small numbers: 2^(133 - e) is past fp32's largest number when e is below 6, and became "
        "infinite. Multiply with two factors, or divide by 2^(e - 133).",
        answer=wrong.infinite_scale,
    ),
    Mistake(
        "nothing_below",
        "Numbers below 2^-126 became 0: where e is 0, mantissas are still x / 2^-133. Groups of zeros are not the only "
        "ones with e = 0.",
        answer=wrong.nothing_below,
        variants=(True, False),
    ),
    Mistake(
        "half_precision",
        "x was rounded to 2 bytes on the way, and then once more: convert it to fp32.",
        answer=wrong.of_converted,
        variants=(torch.float16, torch.bfloat16),
    ),
    Mistake(
        "mantissas_of_special_groups",
        "A group that holds NaN or an infinity has the right exponent, 255, but its mantissas should all be 0.",
        sign=wrong.mantissas_of_special,
    ),
)

EXPONENTS = (
    Mistake(
        "exponent_of_rounded",
        "The exponent is one too large where the largest of a group lies just below a power of two: it was made from a "
        "rounded number. (`log2` rounds too: take the exponent from the bits of the true maximum. Its mantissa is then "
        "held to 127.)",
        answer=wrong.of_rounded,
        variants=(*wrong.POWERS, torch.bfloat16, torch.float16),
    ),
    Mistake(
        "ceil_of_log2",
        "The exponent is one too large, but for powers of two: it is the floor of log2, not the ceiling.",
        answer=wrong.encoded(power=wrong.ceil_log2),
    ),
    Mistake(
        "bias",
        "Mantissas are right, but the exponents are off by a constant: e = floor(log2(a)) + 127.",
        answer=wrong.exponent_off,
        variants=(-127, -6, -1, 1, 6),
    ),
    Mistake(
        "nan_dropped",
        "Groups with a NaN look like others: `tl.max` drops NaN. Look at the bits: as integers, without the sign, "
        "those of NaN are the largest of all.",
        answer=wrong.only_numbers,
    ),
    Mistake(
        "special_as_number",
        "Groups that hold NaN or an infinity get an exponent like others: theirs is 255, which no finite group has.",
        answer=wrong.special_as_numbers,
        variants=(254.0, 0.0, 127.0),
    ),
    Mistake(
        "zeros",
        "Groups of zeros have another exponent than 0.",
        answer=wrong.of_zeros,
        variants=(127, 1, 126, 133, 255),
    ),
    Mistake(
        "below_zero",
        "Exponents below 0 wrapped round to large ones: hold e to 0 .. 254.",
        answer=wrong.no_floor,
    ),
    Mistake(
        "without_sizes",
        "The exponent follows the largest number and not the largest size: negative numbers are ignored.",
        answer=wrong.signed_largest,
    ),
    Mistake(
        "first_element",
        "The exponent is that of the first element of each group: reduce over the whole group.",
        answer=wrong.first_decides,
    ),
)

GROUPS = (
    Mistake(
        "one_exponent_a_row",
        "A whole row shares one exponent: reduce over a group, not over the block.",
        answer=lambda v: wrong.one_exponent(v, False),
    ),
    Mistake(
        "one_exponent_for_all",
        "The whole matrix shares one exponent.",
        answer=lambda v: wrong.one_exponent(v, True),
    ),
    Mistake(
        "across_rows",
        "Groups run on from one row into the next: each row begins with a group of its own, and its last group may be "
        "short.",
        answer=wrong.across_rows,
    ),
    Mistake(
        "downwards",
        "Groups lie along columns: they are adjacent elements of a row.",
        answer=wrong.downwards,
    ),
    Mistake(
        "load_not_masked",
        "Where the last group is short, what lies behind the row takes part in it: mask the load with "
        "`column < columns, other=0.0`.",
        answer=wrong.neighbours,
    ),
    Mistake(
        "no_other",
        "Short last groups look like groups with NaN: lanes that are masked hold anything unless `other` says what. "
        "Load with `other=0.0`.",
        answer=wrong.lost_lanes,
    ),
    Mistake(
        "tail_missing",
        "The short last group of a row is never computed: a row has `triton.cdiv(C, group)` groups.",
        sign=wrong.tail_missing,
    ),
    Mistake(
        "rows_missing",
        "Rows from some row on were never written: launch programs for all of them, `triton.cdiv` where several make a "
        "program.",
        sign=wrong.some_rows_missing,
    ),
)

MISTAKES = (*MEMORY, *MANTISSAS, *EXPONENTS, *GROUPS)
