"""Wrong quantisations as formulas of the arguments, and signs for those that no formula describes."""

import torch

from autograder.exercises.mx.mxint8 import (
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
from autograder.exercises.strides import as_read

PARTIAL = "a partial last group"
SPECIAL = ("NaN", "infinity")


def wrapped(m: torch.Tensor) -> torch.Tensor:
    """What is left in 8 bits."""
    return (m + 128) % 256 - 128


def ties_up(y):
    return (y + 0.5).floor().clamp(-127, 127)


def ties_away(y):
    return (y.abs() + 0.5).floor().mul(y.sign()).clamp(-127, 127)


TIES = {"up": ties_up, "away": ties_away}
CUT = {"towards zero": lambda y: y.trunc(), "down": lambda y: y.floor().clamp(-127, 127)}


def encoded(**changes):
    return lambda v: encode(v, **changes)


def rounded_first(dtype):
    """x, or the largest of a group, in a type with fewer bits."""
    return lambda groups: largest(groups.to(dtype).double())


def of_converted(v, dtype):
    return encode(v | {"x": v["x"].to(dtype)}) if v["x"].dtype == torch.float32 else {}


def fits(size):
    """One more where the largest mantissa would round to 128."""
    power = floor_log2(size)
    return power + ((size * power_of_two(6 - power)).round() > 127).long()


def rounded_log2(size):
    return torch.log2(size.float()).floor().long()


def ceil_log2(size):
    return torch.log2(size).ceil().long()


POWERS = {"fitting": fits, "rounded log2": rounded_log2}


def of_rounded(v, how):
    if how in POWERS:
        return encode(v, power=POWERS[how])
    return encode(v, top=rounded_first(how)) if v["x"].dtype == torch.float32 else {}


def exponent_off(v, by: int):
    """Mantissas as they should be, and another exponent stored."""
    made = encode(v)
    e = made["exponents"]
    return made | {"exponents": torch.where(e == 255, e, (e + by) % 256)}


def only_numbers(v):
    """The largest of a group without its NaN; what becomes of the NaN, nobody knows."""
    made = encode(v, top=lambda groups: largest(groups.nan_to_num(nan=0.0, posinf=float("inf"), neginf=-float("inf"))))
    return {"exponents": made["exponents"]} if v["x"].isnan().any() else {}


def special_as_numbers(v, e):
    """Groups with NaN or infinity get an exponent like others."""
    made = encode(v)["exponents"]
    return {"exponents": torch.where(made == 255, e, made)}


def of_zeros(v, e):
    made = encode(v)
    zero = largest(grouped(v["x"], v["group"])) == 0
    return made | {"exponents": torch.where(zero, float(e), made["exponents"])}


def one_exponent(v, whole: bool):
    """Of a row, or of all rows."""

    def top(groups):
        size = largest(groups)
        return size.amax().expand_as(size) if whole else size.amax(1, keepdim=True).expand_as(size)

    return encode(v, top=top) if v["x"].numel() else {}


def across_rows(v):
    """Groups of the flat matrix: they run on from one row into the next."""
    x = v["x"].reshape(1, -1)
    if not x.numel():
        return {}
    return {"mantissas": encode(v | {"x": x})["mantissas"].view(v["x"].shape)}


def downwards(v):
    """Groups of a column in place of a row."""
    made = encode(v | {"x": v["x"].T.contiguous()})
    return {"mantissas": made["mantissas"].T}


def without_sizes(groups):
    """The largest number, and not the largest size."""
    return groups.amax(-1)


def signed_largest(v):
    groups = grouped(v["x"], v["group"])
    there = group_count(v["x"].shape[1], v["group"])
    if not there or not v["x"].numel() or bool((without_sizes(groups) < 0).any()):
        return {}
    return encode(v, top=without_sizes)


def first_decides(v):
    return encode(v, top=lambda groups: groups[..., 0].abs())


def neighbours(v):
    """Lanes past the end of a row are read from whatever lies there."""
    wide = as_read(v["x"], (len(v["x"]), group_count(v["x"].shape[1], v["group"]) * v["group"]), v["x"].stride())
    return joined(v, **of_wide(v, wide))


def of_wide(v, wide):
    made = encode(v | {"x": wide})
    return {"m": made["mantissas"].unflatten(1, (-1, v["group"])), "e": made["exponents"]}


def lost_lanes(v):
    """Lanes past the end hold NaN: every partial group is one that holds NaN."""
    lacking = group_count(v["x"].shape[1], v["group"]) * v["group"] - v["x"].shape[1]
    return joined(v, **of_wide(v, torch.nn.functional.pad(v["x"].float(), (0, lacking), value=float("nan"))))


def infinite_scale(v):
    """2^(133 - e) in fp32, which ends below 2^128."""
    made = encode(v)
    groups, e = grouped(v["x"], v["group"]), made["exponents"].long()
    scale = torch.where(e < 6, float("inf"), 1.0)[..., None]
    m = torch.where(scale.isinf(), (groups.sign() * 127), nearest(in_steps(groups, e)))
    return joined(v, torch.where((e == 255)[..., None], 0.0, m), made["exponents"])


def nothing_below(v, whole: bool):
    """Zeros in place of numbers below 2^-126, or of every group whose exponent is 0."""
    made, x = encode(v), v["x"].double()
    lost = spread(made["exponents"], v["group"], x.shape[1]) == 0 if whole else x.abs() < 2.0**-126
    return made | {"mantissas": torch.where(lost, 0.0, made["mantissas"])}


def no_floor(v):
    """Exponents below 0 wrap round."""
    groups = grouped(v["x"], v["group"])
    size = largest(groups)
    if not bool(size.isfinite().all()) or bool((size == 0).any()):
        return {}
    e = floor_log2(size) + BIAS
    return joined(v, nearest(in_steps(groups, e)), e % 256)


def transposed(v):
    made = encode(v)
    e = made["exponents"]
    return made | {"exponents": e.T.contiguous().view(e.shape)}


def rows_packed(v):
    return encode(v | {"x": as_read(v["x"], v["x"].shape, (v["x"].shape[1], 1))})


def stride_of_mantissas(v):
    return encode(v | {"x": as_read(v["x"], v["x"].shape, v["mantissas"].stride())})


# ------------------------------------------------------------------------------------------- signs


def mantissas_of_special(e) -> bool:
    """Exponents are right everywhere, and mantissas are wrong in groups that hold NaN or infinity only."""
    return e.failed_only(*SPECIAL) and all(right(t, "exponents") for t in e.failing)


def right(t, name: str) -> bool:
    got = t.outcome.outputs.get(name)
    return isinstance(got, torch.Tensor) and bool((got.double() == t.want[name]).all())


def tail_missing(e) -> bool:
    """Wrong in the last, partial group of a row, and nowhere else; nothing was written past the end."""
    failing = [t for t in e.failing if t.outcome.error is None]
    return e.failed(PARTIAL) and bool(failing) and all(map(only_tail, failing))


def rows_too_near(e) -> bool:
    """Mantissas are right, and the exponents of a row lie C // group behind those of the row before."""
    failing = [t for t in e.failing if t.outcome.error is None]
    return e.failed(PARTIAL) and bool(failing) and all(right(t, "mantissas") and near(t) for t in failing)


def near(t) -> bool:
    """Where two rows meet, the last exponent of one and the first of the next share a place: either may be there."""
    got, want = t.outcome.outputs["exponents"].double(), t.want["exponents"]
    (rows, groups), apart = want.shape, t.args["x"].shape[1] // t.args["group"]
    if got.shape != want.shape or apart == groups or rows < 2:
        return False
    there = got.flatten()[: rows * apart].view(rows, apart)
    ends = torch.cat([want[:1, :1], want[:-1, -1:]])
    first = (there[:, :1] == want[:, :1]) | (there[:, :1] == ends)
    return bool(first.all()) and torch.equal(there[:, 1:], want[:, 1:apart])


def only_tail(t) -> bool:
    got, group = t.outcome.outputs.get("mantissas"), t.args["group"]
    if not isinstance(got, torch.Tensor) or got.shape != t.want["mantissas"].shape:
        return False
    wrong = got.double() != t.want["mantissas"]
    return bool(wrong.any()) and not bool(wrong[:, : got.shape[1] // group * group].any())


def some_rows_missing(e) -> bool:
    """Rows from some row on, or all of few, hold what they held before."""
    firsts = [first_untouched(t) for t in e.failing]
    return any(firsts) and None not in firsts


def first_untouched(t) -> int | None:
    """The row from which on all exponents are wrong and all mantissas the same; None where there is no such row."""
    m, e = (t.outcome.outputs.get(name) for name in ("mantissas", "exponents"))
    if t.outcome.error or m.shape != t.want["mantissas"].shape:
        return None
    bad = (e.double() != t.want["exponents"]).any(1) & (m == m[-1, -1]).all(1)
    first = int(bad.nonzero()[0]) if bool(bad.any()) else len(bad)
    return first if first < len(bad) and bool(bad[first:].all()) else None
