"""How people quantise wrongly, each as a formula or as a sign."""

import torch

from autograder.exercise import Mistake
from autograder.exercises.layout import as_read
from autograder.exercises.mx.format import (
    BIAS,
    encode,
    floor_log2,
    group_count,
    grouped,
    in_steps,
    joined,
    largest,
    nearest,
    power_of_two,
    spread,
)

PARTIAL = "a partial last group"
SPECIAL = ("NaN", "infinity")


def _wrapped(m: torch.Tensor) -> torch.Tensor:
    """What is left in 8 bits."""
    return (m + 128) % 256 - 128


def _ties_up(y):
    return (y + 0.5).floor().clamp(-127, 127)


def _ties_away(y):
    return (y.abs() + 0.5).floor().mul(y.sign()).clamp(-127, 127)


TIES = {"up": _ties_up, "away": _ties_away}
CUT = {"towards zero": lambda y: y.trunc(), "down": lambda y: y.floor().clamp(-127, 127)}


def _with(**changes):
    return lambda v: encode(v, **changes)


def _rounded_first(dtype):
    """x, or the largest of a group, in a type with fewer bits."""
    return lambda groups: largest(groups.to(dtype).double())


def _to(dtype):
    return lambda v: encode(v | {"x": v["x"].to(dtype)}) if v["x"].dtype == torch.float32 else {}


def _fits(size):
    """One more where the largest mantissa would round to 128."""
    power = floor_log2(size)
    return power + ((size * power_of_two(6 - power)).round() > 127).long()


def _rounded_log2(size):
    return torch.log2(size.float()).floor().long()


def _ceil_log2(size):
    return torch.log2(size).ceil().long()


POWERS = {"fitting": _fits, "rounded log2": _rounded_log2}


def _of_rounded(v, how):
    if how in POWERS:
        return encode(v, power=POWERS[how])
    return encode(v, top=_rounded_first(how)) if v["x"].dtype == torch.float32 else {}


def _exponent_off(v, by: int):
    """Mantissas as they should be, and another exponent stored."""
    made = encode(v)
    e = made["exponents"]
    return made | {"exponents": torch.where(e == 255, e, (e + by) % 256)}


def _only_numbers(v):
    """The largest of a group without its NaN; what becomes of the NaN, nobody knows."""
    made = encode(v, top=lambda groups: largest(groups.nan_to_num(nan=0.0, posinf=float("inf"), neginf=-float("inf"))))
    return {"exponents": made["exponents"]} if v["x"].isnan().any() else {}


def _special_as_numbers(v, e):
    """Groups with NaN or infinity get an exponent like others."""
    made = encode(v)["exponents"]
    return {"exponents": torch.where(made == 255, e, made)}


def _of_zeros(v, e):
    made = encode(v)
    zero = largest(grouped(v["x"], v["group"])) == 0
    return made | {"exponents": torch.where(zero, float(e), made["exponents"])}


def _one_exponent(v, whole: bool):
    """Of a row, or of all rows."""

    def top(groups):
        size = largest(groups)
        return size.amax().expand_as(size) if whole else size.amax(1, keepdim=True).expand_as(size)

    return encode(v, top=top) if v["x"].numel() else {}


def _across_rows(v):
    """Groups of the flat matrix: they run on from one row into the next."""
    x = v["x"].reshape(1, -1)
    if not x.numel():
        return {}
    return {"mantissas": encode(v | {"x": x})["mantissas"].view(v["x"].shape)}


def _downwards(v):
    """Groups of a column in place of a row."""
    made = encode(v | {"x": v["x"].T.contiguous()})
    return {"mantissas": made["mantissas"].T}


def _without_sizes(groups):
    """The largest number, and not the largest size."""
    return groups.amax(-1)


def _signed_largest(v):
    groups = grouped(v["x"], v["group"])
    there = group_count(v["x"].shape[1], v["group"])
    if not there or not v["x"].numel() or bool((_without_sizes(groups) < 0).any()):
        return {}
    return encode(v, top=_without_sizes)


def _first_decides(v):
    return encode(v, top=lambda groups: groups[..., 0].abs())


def _neighbours(v):
    """Lanes past the end of a row are read from whatever lies there."""
    wide = as_read(v["x"], (len(v["x"]), group_count(v["x"].shape[1], v["group"]) * v["group"]), v["x"].stride())
    return joined(v, **_of_wide(v, wide))


def _of_wide(v, wide):
    made = encode(v | {"x": wide})
    return {"m": made["mantissas"].unflatten(1, (-1, v["group"])), "e": made["exponents"]}


def _lost_lanes(v):
    """Lanes past the end hold NaN: every partial group is one that holds NaN."""
    lacking = group_count(v["x"].shape[1], v["group"]) * v["group"] - v["x"].shape[1]
    return joined(v, **_of_wide(v, torch.nn.functional.pad(v["x"].float(), (0, lacking), value=float("nan"))))


def _infinite_scale(v):
    """2^(133 - e) in fp32, which ends below 2^128."""
    made = encode(v)
    groups, e = grouped(v["x"], v["group"]), made["exponents"].long()
    scale = torch.where(e < 6, float("inf"), 1.0)[..., None]
    m = torch.where(scale.isinf(), (groups.sign() * 127), nearest(in_steps(groups, e)))
    return joined(v, torch.where((e == 255)[..., None], 0.0, m), made["exponents"])


def _nothing_below(v, whole: bool):
    """Zeros in place of numbers below 2^-126, or of every group whose exponent is 0."""
    made, x = encode(v), v["x"].double()
    lost = spread(made["exponents"], v["group"], x.shape[1]) == 0 if whole else x.abs() < 2.0**-126
    return made | {"mantissas": torch.where(lost, 0.0, made["mantissas"])}


def _no_floor(v):
    """Exponents below 0 wrap round."""
    groups = grouped(v["x"], v["group"])
    size = largest(groups)
    if not bool(size.isfinite().all()) or bool((size == 0).any()):
        return {}
    e = floor_log2(size) + BIAS
    return joined(v, nearest(in_steps(groups, e)), e % 256)


def _transposed(v):
    made = encode(v)
    e = made["exponents"]
    return made | {"exponents": e.T.contiguous().view(e.shape)}


def _rows_packed(v):
    return encode(v | {"x": as_read(v["x"], v["x"].shape, (v["x"].shape[1], 1))})


def _stride_of_mantissas(v):
    return encode(v | {"x": as_read(v["x"], v["x"].shape, v["mantissas"].stride())})


# ------------------------------------------------------------------------------------------- signs


def _mantissas_of_special(e) -> bool:
    """Exponents are right everywhere, and mantissas are wrong in groups that hold NaN or infinity only."""
    return e.failed_only(*SPECIAL) and all(_right(t, "exponents") for t in e.failing)


def _right(t, name: str) -> bool:
    got = t.outcome.outputs.get(name)
    return isinstance(got, torch.Tensor) and bool((got.double() == t.want[name]).all())


def _tail_missing(e) -> bool:
    """Wrong in the last, partial group of a row, and nowhere else; nothing was written past the end."""
    failing = [t for t in e.failing if t.outcome.error is None]
    return e.failed(PARTIAL) and bool(failing) and all(map(_only_tail, failing))


def _rows_too_near(e) -> bool:
    """Mantissas are right, and the exponents of a row lie C // group behind those of the row before."""
    failing = [t for t in e.failing if t.outcome.error is None]
    return e.failed(PARTIAL) and bool(failing) and all(_right(t, "mantissas") and _near(t) for t in failing)


def _near(t) -> bool:
    """Where two rows meet, the last exponent of one and the first of the next share a place: either may be there."""
    got, want = t.outcome.outputs["exponents"].double(), t.want["exponents"]
    (rows, groups), apart = want.shape, t.args["x"].shape[1] // t.args["group"]
    if got.shape != want.shape or apart == groups or rows < 2:
        return False
    there = got.flatten()[: rows * apart].view(rows, apart)
    ends = torch.cat([want[:1, :1], want[:-1, -1:]])
    first = (there[:, :1] == want[:, :1]) | (there[:, :1] == ends)
    return bool(first.all()) and torch.equal(there[:, 1:], want[:, 1:apart])


def _only_tail(t) -> bool:
    got, group = t.outcome.outputs.get("mantissas"), t.args["group"]
    if not isinstance(got, torch.Tensor) or got.shape != t.want["mantissas"].shape:
        return False
    wrong = got.double() != t.want["mantissas"]
    return bool(wrong.any()) and not bool(wrong[:, : got.shape[1] // group * group].any())


def _some_rows_missing(e) -> bool:
    """Rows from some row on, or all of few, hold what they held before."""
    firsts = [_first_untouched(t) for t in e.failing]
    return any(firsts) and None not in firsts


def _first_untouched(t) -> int | None:
    """The row from which on all exponents are wrong and all mantissas the same; None where there is no such row."""
    m, e = (t.outcome.outputs.get(name) for name in ("mantissas", "exponents"))
    if t.outcome.error or m.shape != t.want["mantissas"].shape:
        return None
    bad = (e.double() != t.want["exponents"]).any(1) & (m == m[-1, -1]).all(1)
    first = int(bad.nonzero()[0]) if bool(bad.any()) else len(bad)
    return first if first < len(bad) and bool(bad[first:].all()) else None


MEMORY = (
    Mistake(
        "int32_offset",
        "Right until a row begins 2^31 elements behind the first, wrong beyond: the offset overflows 32 bits. Widen "
        "first: `row.to(tl.int64) * stride`.",
        sign=lambda e: e.failed_only("offsets past 2^31"),
    ),
    Mistake(
        "never_written",
        "Neither output was written: the function fills the `mantissas` and `exponents` it is given.",
        sign=lambda e: e.all_failing_unwritten("mantissas") and e.all_failing_unwritten("exponents"),
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
        answer=_rows_packed,
    ),
    Mistake(
        "stride_of_mantissas_for_x",
        "The row stride of `mantissas` is used for `x` too: each tensor has one of its own.",
        answer=_stride_of_mantissas,
    ),
    Mistake(
        "groups_rounded_down",
        "Exponents are wrong from the second row on where the last group is short: that of row r and group g belongs "
        "at r * triton.cdiv(C, group) + g, and not at r * (C // group) + g.",
        sign=_rows_too_near,
    ),
    Mistake(
        "exponents_transposed",
        "The exponents lie in the order of columns: that of row r and group g belongs to r * groups + g.",
        answer=_transposed,
    ),
)

MANTISSAS = (
    Mistake(
        "cut_off",
        "Mantissas are cut off and not rounded: a conversion to an integer drops the fraction. Round to nearest first.",
        answer=lambda v, how: encode(v, mantissa=CUT[how]),
        variants=tuple(CUT),
    ),
    Mistake(
        "ties_not_to_even",
        "Wrong only halfway between two mantissas: `floor(y + 0.5)` takes ties up, the rule is to the even one. Adding "
        "1.5 * 2^23 and taking it away again rounds as fp32 does, to even.",
        answer=lambda v, how: encode(v, mantissa=TIES[how]),
        variants=tuple(TIES),
    ),
    Mistake(
        "wraps_past_127",
        "127.5 and more round to 128, which an int8 does not hold: 128 became -128. Hold m to +-127 before it is "
        "converted.",
        answer=lambda v, low: encode(v, mantissa=lambda y: _wrapped(y.round().clamp(min=low))),
        variants=(-128, -127),
    ),
    Mistake(
        "minus_128_kept",
        "-127.5 and less round to -128, and stay there: m is held to +-127 on both sides. (The size of an int8 that is "
        "-128 is -128 again: take sizes before converting.)",
        answer=_with(mantissa=lambda y: y.round().clamp(-128, 127)),
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
        answer=_with(mantissa=lambda y: nearest(y.abs())),
    ),
    Mistake(
        "scale_overflows",
        "Wrong only for very small numbers: 2^(133 - e) is past fp32's largest number when e is below 6, and became "
        "infinite. Multiply with two factors, or divide by 2^(e - 133).",
        answer=_infinite_scale,
    ),
    Mistake(
        "nothing_below",
        "Numbers below 2^-126 became 0: where e is 0, mantissas are still x / 2^-133. Groups of zeros are not the only "
        "ones with e = 0.",
        answer=_nothing_below,
        variants=(True, False),
    ),
    Mistake(
        "half_precision",
        "x was rounded to 2 bytes on the way, and then once more: convert it to fp32.",
        answer=lambda v, dtype: _to(dtype)(v),
        variants=(torch.float16, torch.bfloat16),
    ),
    Mistake(
        "mantissas_of_special_groups",
        "A group that holds NaN or an infinity has the right exponent, 255, but its mantissas should all be 0.",
        sign=_mantissas_of_special,
    ),
)

EXPONENTS = (
    Mistake(
        "exponent_of_rounded",
        "The exponent is one too large where the largest of a group lies just below a power of two: it was made from a "
        "rounded number. (`log2` rounds too: take the exponent from the bits of the true maximum. Its mantissa is then "
        "held to 127.)",
        answer=_of_rounded,
        variants=(*POWERS, torch.bfloat16, torch.float16),
    ),
    Mistake(
        "ceil_of_log2",
        "The exponent is one too large, but for powers of two: it is the floor of log2, not the ceiling.",
        answer=_with(power=_ceil_log2),
    ),
    Mistake(
        "bias",
        "Mantissas are right, but the exponents are off by a constant: e = floor(log2(a)) + 127.",
        answer=_exponent_off,
        variants=(-127, -6, -1, 1, 6),
    ),
    Mistake(
        "nan_dropped",
        "Groups with a NaN look like others: `tl.max` drops NaN. Look at the bits: as integers, without the sign, "
        "those of NaN are the largest of all.",
        answer=_only_numbers,
    ),
    Mistake(
        "special_as_number",
        "Groups that hold NaN or an infinity get an exponent like others: theirs is 255, which no finite group has.",
        answer=_special_as_numbers,
        variants=(254.0, 0.0, 127.0),
    ),
    Mistake(
        "zeros",
        "Groups of zeros have another exponent than 0.",
        answer=_of_zeros,
        variants=(127, 1, 126, 133, 255),
    ),
    Mistake(
        "below_zero",
        "Exponents below 0 wrapped round to large ones: hold e to 0 .. 254.",
        answer=_no_floor,
    ),
    Mistake(
        "without_sizes",
        "The exponent follows the largest number and not the largest size: negative numbers are ignored.",
        answer=_signed_largest,
    ),
    Mistake(
        "first_element",
        "The exponent is that of the first element of each group: reduce over the whole group.",
        answer=_first_decides,
    ),
)

GROUPS = (
    Mistake(
        "one_exponent_a_row",
        "A whole row shares one exponent: reduce over a group, not over the block.",
        answer=lambda v: _one_exponent(v, False),
    ),
    Mistake(
        "one_exponent_for_all",
        "The whole matrix shares one exponent.",
        answer=lambda v: _one_exponent(v, True),
    ),
    Mistake(
        "across_rows",
        "Groups run on from one row into the next: each row begins with a group of its own, and its last group may be "
        "short.",
        answer=_across_rows,
    ),
    Mistake(
        "downwards",
        "Groups lie along columns: they are adjacent elements of a row.",
        answer=_downwards,
    ),
    Mistake(
        "load_not_masked",
        "Where the last group is short, what lies behind the row takes part in it: mask the load with "
        "`column < columns, other=0.0`.",
        answer=_neighbours,
    ),
    Mistake(
        "no_other",
        "Short last groups look like groups with NaN: lanes that are masked hold anything unless `other` says what. "
        "Load with `other=0.0`.",
        answer=_lost_lanes,
    ),
    Mistake(
        "tail_missing",
        "The short last group of a row is never computed: a row has `triton.cdiv(C, group)` groups.",
        sign=_tail_missing,
    ),
    Mistake(
        "rows_missing",
        "Rows from some row on were never written: launch programs for all of them, `triton.cdiv` where several make a "
        "program.",
        sign=_some_rows_missing,
    ),
)

MISTAKES = (*MEMORY, *MANTISSAS, *EXPONENTS, *GROUPS)
