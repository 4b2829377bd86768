"""mx.dequantize: back to numbers, every bit of them.

    dequantize(mantissas, exponents, group, out)

mantissas is (R, C) in int8, out (R, C) in bf16: rows of both may lie apart, their columns are adjacent. exponents is
(R, ceil(C / group)) in uint8, contiguous, and group a power of two from 1 to 256; the last group of a row may be short.

    out = m * 2^(e - 133)

for m from -128 to 127 and e from 0 to 254; NaN for every m where e is 255. Numbers below 2^-126, which small exponents
give, are bf16's subnormals, and are kept. (-128, 254) is -2^128, the one pair that bf16 does not hold: it gives -inf.
Every element must be exact. All arithmetic is in kernels.
"""

import torch

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Precision
from autograder.exercises.dtypes import BF16, significant
from autograder.exercises.mx.dequantize_mistakes import MISTAKES
from autograder.exercises.mx.inputs import exponents, mantissas
from autograder.exercises.mx.mxint8 import decode, in_bf16
from autograder.exercises.mx.places import wrong_groups
from autograder.exercises.strides import far_apart


def _call(d: Draw, m: torch.Tensor, e: torch.Tensor, group: int, out_gap=0) -> Call:
    rows, columns = m.shape
    out = torch.full((rows, columns), float("nan"), dtype=BF16, device=d.device)  # stored, never computed in
    out = d.lay_out(out, (columns + out_gap, 1))
    sizes = f"{rows} row{'s' * (rows != 1)} of {columns}, groups of {group}"
    if out_gap or (rows > 1 and m.stride(0) != columns):
        sizes += f", row strides {m.stride(0)} and {columns + out_gap}"
    return Call({"mantissas": m, "exponents": e, "group": group, "out": out}, sizes)


def _any(d: Draw, rows: int, columns: int, group: int, low=100, high=140, gap=0, out_gap=0, least=-128) -> Call:
    m = mantissas(d, rows, columns, gap, low=least)
    return _call(d, m, exponents(d, rows, columns, group, low, high), group, out_gap)


def _every_pair(d: Draw) -> Call:
    """All 65,536 pairs: a row for each exponent, in no order."""
    e = torch.argsort(d.uniform(256)).to(torch.uint8)
    m = torch.argsort(d.uniform(256, 256), dim=1) - 128
    return _call(d, d.lay_out(m.to(torch.int8)), d.lay_out(e[:, None].contiguous()), 256)


def _often_minus_128(d: Draw) -> Call:
    made = _any(d, 4, d.odd(40, 60), 16)
    made.args["mantissas"][:, ::3] = -128
    return made


def _one_row(d: Draw, group: int) -> Call:
    """Neighbouring groups with exponents far apart."""
    columns = group * d.integer(3, 6)
    e = d.integers(1, columns // group, low=60, high=190, dtype=torch.uint8)
    return _call(d, mantissas(d, 1, columns, low=-127), e, group)


def _with(d: Draw, rows: int, columns: int, group: int, low: int, high: int, corner: int) -> Call:
    """Exponents in a range. Each row begins with a group of the corner that the case is for, and that with a 64, which
    has no bits of the fraction; of the first row the last group has the other end of the range."""
    made = _any(d, rows, columns, group, low=low, high=high, least=-127)
    made.args["exponents"][0, -1] = low + high - corner
    made.args["exponents"][:, 0] = corner
    made.args["mantissas"][:, 0] = 64
    return made


def _past_int32(d: Draw) -> Call:
    """The third row of the mantissas begins past 2^31 elements. 2.1 GB, nearly all of it gap."""
    args = _any(d, 3, d.odd(300, 400), 32).args
    m = args["mantissas"] = far_apart(args["mantissas"])
    return Call(args, f"3 rows of {m.shape[1]}, groups of 32, row stride of the mantissas {m.stride(0)}")


CASES = (
    Case("one group", lambda d: _any(d, 1, 32, 32, least=-127)),
    Case("whole groups", lambda d: _any(d, d.odd(3, 7), 32 * d.integer(2, 4), 32, least=-127)),
    Case("a partial last group", lambda d: _any(d, 5, 32 * d.integer(1, 2) + d.odd(3, 29), 32, least=-127)),
    Case("a row shorter than a group", lambda d: _any(d, d.odd(3, 7), d.odd(17, 29), 64, least=-127)),
    Case("groups of one", lambda d: _any(d, 3, d.odd(20, 30), 1, least=-127)),
    Case("small groups", lambda d: _any(d, 3, d.odd(34, 50), d.choice([2, 4]), least=-127)),
    Case("large groups", lambda d: _any(d, 3, d.odd(300, 400), d.choice([128, 256]), least=-127)),
    Case("exponents far apart", lambda d: _one_row(d, 16)),
    Case("many rows", lambda d: _any(d, d.odd(67, 79), d.odd(17, 31), 16, least=-127)),
    Case("strided mantissas", lambda d: _any(d, 5, d.odd(34, 60), 16, gap=d.integer(3, 30), least=-127)),
    Case("strided output", lambda d: _any(d, 5, d.odd(34, 60), 16, out_gap=d.integer(3, 30), least=-127)),
    Case("mantissas of -128", _often_minus_128),
    Case("exponents of 0", lambda d: _any(d, 3, 64, 32, low=0, high=0, least=-127)),
    Case("subnormal results", lambda d: _with(d, 5, 64, 16, 0, 6, corner=0)),
    Case("exponents of 255", lambda d: _with(d, 3, 64, 32, 254, 255, corner=255)),
    Case("every pair", _every_pair),
    Case("no rows", lambda d: _any(d, 0, 40, 32)),
    Case("large", lambda d: _any(d, d.odd(500, 600), d.odd(4000, 5000), 32, 0, 255), tiers=ON_GPU),
    Case("offsets past 2^31", _past_int32, tiers=ON_GPU, live=False, share=0.5),
)


def _exact(v) -> torch.Tensor:
    return in_bf16(decode(v))


DEQUANTIZE = Exercise(
    name="mx.dequantize",
    entry="dequantize",
    points=6,
    about="every pair of a mantissa and an exponent, exactly",
    point=("one group", "mantissas of -128", "every pair"),
    kind="kernel",
    cases=CASES,
    writes=("out",),
    oracle=lambda v: {"out": _exact(v)},
    precision=Precision(
        good=lambda v: {"out": _exact(v)},
        good_is="exact",
        lower=lambda v: {"out": in_bf16(decode(v, m=significant(v["mantissas"], 6)))},
        lower_is="mantissas of six bits",
        floor_ulps=0.0,
    ),
    mistakes=MISTAKES,
    where=wrong_groups,
    shows_not="speed, races between programs, exp2 that makes zeros of subnormal numbers, and offsets past 2^31",
)
