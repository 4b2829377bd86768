"""mx.quantize: numbers into groups that share an exponent.

    quantize(x, group, mantissas, exponents)

x is (R, C) in fp32, fp16 or bf16, mantissas (R, C) in int8: rows of both may lie apart, their columns are adjacent.
group is a power of two from 1 to 256; the groups of a row are its columns 0 .. group - 1, and so on, the last one as
short as it comes. exponents is (R, ceil(C / group)) in uint8, contiguous. For the largest size a of a group

    e = floor(log2(a)) + 127, held to 0 .. 254        m = x / 2^(e - 133), to nearest, ties to even, held to +-127

A group of zeros gives e = 0 and m = 0; one that holds NaN or an infinity e = 255 and m = 0. Every m and e must be
exact. All arithmetic is in kernels.
"""

import torch

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Precision
from autograder.exercises.dtypes import BF16, DTYPE_NAMES, FP16, FP32
from autograder.exercises.mx.inputs import powers, signs
from autograder.exercises.mx.mxint8 import LARGEST, encode, group_count
from autograder.exercises.mx.places import wrong_groups
from autograder.exercises.mx.quantize_mistakes import MISTAKES
from autograder.exercises.strides import far_apart


def _call(d: Draw, x: torch.Tensor, group: int, dtype=FP32, gap=0, m_gap=0, too_large=False) -> Call:
    """too_large: mantissas may round to 128. Elsewhere none does, or an answer that does not hold m to 127 would be
    wrong in some draws of a case and right in others."""
    x, (rows, columns) = x.to(d.type_of(dtype)), x.shape
    if not too_large:
        over = encode({"x": x, "group": group}, mantissa=torch.round)["mantissas"].abs() > LARGEST
        x = torch.where(over, x * 0.99, x)
    dtype, x = x.dtype, d.lay_out(x, (columns + gap, 1))
    m = d.empty(rows, columns, dtype=torch.int8, strides=(columns + m_gap, 1))
    e = d.empty(rows, group_count(columns, group), dtype=torch.uint8)
    sizes = f"{rows} row{'s' * (rows != 1)} of {columns}, {DTYPE_NAMES[dtype]}, groups of {group}"
    if gap or m_gap:
        sizes += f", row strides {columns + gap} and {columns + m_gap}"
    return Call({"x": x, "group": group, "mantissas": m, "exponents": e}, sizes)


def _normal(d: Draw, rows: int, columns: int, group: int, low=-12, high=12, **how) -> Call:
    """Normal values, each group of a size of its own; in the first, the number farthest from 0 is negative.

    It is twice as far as any other, so no positive one gives the same exponent.
    """
    x = d.normal(rows, columns).double()
    if rows:
        farthest = x[0, :group].abs().argmax()
        x[0, farthest] = -2 * x[0, farthest].abs()
    return _call(d, x * powers(d, rows, columns, group, low, high), group, **how)


def _in_steps(d: Draw, steps: torch.Tensor, group: int) -> Call:
    """Numbers that are `steps` in units of the last place of their mantissa, as long as the largest is 64 or more.

    The first group is past what fp16 holds.
    """
    rows, columns = steps.shape
    sizes = powers(d, rows, columns, group, -20, 20)
    sizes[0, :group] = 2.0**20
    return _call(d, steps * sizes, group, too_large=True)


def _ties(d: Draw, off: float = 0.0) -> Call:
    """Halfway between two mantissas, or next to it: off to either side."""
    rows, columns, group = d.integer(3, 5), 64, 32
    steps = d.uniform(rows, columns, low=0, high=126).floor().double() + 0.5 + off * signs(d, rows, columns)
    steps[:, 5::32] = 100.5 + off
    return _in_steps(d, steps * signs(d, rows, columns), group)


def _rounding_up_to_128(d: Draw) -> Call:
    """Mantissas of 127.5 to 128, which do not fit, and others."""
    rows, columns, group = d.integer(3, 5), d.odd(66, 90), 16
    steps = d.uniform(rows, columns, low=1, high=120).double()
    some = d.uniform(rows, columns) < 0.3
    some[:, ::group] = True
    steps = torch.where(some, 127.5 + 0.45 * d.uniform(rows, columns).double(), steps)
    return _in_steps(d, steps * signs(d, rows, columns), group)


def _largest(d: Draw, size: float) -> Call:
    """The largest of every group is `size` times a power of two, and the others are below.

    In the first row powers are large, the first of them past what fp16 holds; in the second they are small.
    """
    rows, columns, group = d.integer(4, 6), d.odd(66, 90), 16
    x = d.uniform(rows, columns, low=0.01, high=0.9).double()
    x[:, 3::group] = size
    x[:, -1] = size
    far = powers(d, rows, columns, group, 9, 20)  # where a rounded log2 is no help
    far[0, :group] = 2.0**20
    upward = signs(d, rows, 1)
    upward[0], upward[1] = 1.0, -1.0
    return _call(d, x * signs(d, rows, columns) * torch.where(upward > 0, far, 1 / far), group, too_large=True)


def _small(d: Draw, low: int, high: int) -> Call:
    """Sizes from 2^low to 2^high, and no zero."""
    rows, columns, group = d.integer(3, 5), d.odd(34, 60), d.choice([8, 16])
    x = d.uniform(rows, columns, low=0.5, high=1.0).double() * signs(d, rows, columns)
    return _call(d, x * powers(d, rows, columns, group, low + 1, high), group)


def _huge(d: Draw) -> Call:
    rows, columns, group = d.integer(3, 5), d.odd(34, 60), 16
    x = d.uniform(rows, columns, low=0.01, high=1.99).double() * signs(d, rows, columns)
    x[:, ::group] = 1.75
    return _call(d, x * powers(d, rows, columns, group, 124, 127), group)


def _far_apart(d: Draw) -> Call:
    """Within a group sizes from 1 down to 2^-12: most mantissas are small, and many are 0."""
    rows, columns = d.integer(3, 5), d.odd(66, 90)
    x = torch.exp2(d.uniform(rows, columns, low=-12, high=0)).double() * signs(d, rows, columns)
    return _call(d, x, 32)


def _with(d: Draw, special: float, share: float) -> Call:
    """Some groups hold `special`, anywhere in them; others do not."""
    rows, columns, group = d.integer(4, 6), d.odd(66, 90), 16
    x = d.normal(rows, columns).double()
    x[(d.uniform(rows, columns) < share)] = special
    x[0, group + 5], x[-1, -1] = special, special
    x[1, : 2 * group] = 1.5
    return _call(d, x * torch.where(x.isinf(), signs(d, rows, columns), 1.0), group)


def _zeros(d: Draw) -> Call:
    """Whole groups of zeros, the last partial one among them, and zeros among other numbers."""
    rows, columns, group = d.integer(4, 6), d.odd(66, 90), 16
    x = d.normal(rows, columns).double()
    x[d.uniform(rows, columns) < 0.3] = 0.0
    x[0, group : 2 * group], x[1, columns // group * group :], x[2] = 0.0, 0.0, -0.0
    return _call(d, x, group)


def _past_int32(d: Draw) -> Call:
    """The third row of x begins past 2^31 elements. 4.3 GB, nearly all of it gap."""
    args = _normal(d, 3, d.odd(300, 400), 32, dtype=FP16, low=-3, high=3).args
    x = args["x"] = far_apart(args["x"])
    return Call(args, f"3 rows of {x.shape[1]}, fp16, groups of 32, row stride of x {x.stride(0)}")


CASES = (
    Case("one group", lambda d: _normal(d, 1, 32, 32)),
    Case("whole groups", lambda d: _normal(d, d.odd(3, 7), 32 * d.integer(2, 4), 32)),
    Case("a partial last group", lambda d: _normal(d, d.odd(3, 7), 32 * d.integer(1, 2) + d.odd(3, 29), 32)),
    Case("a row shorter than a group", lambda d: _normal(d, d.odd(3, 7), d.odd(17, 29), 64)),
    Case("groups of one", lambda d: _normal(d, 3, d.odd(20, 30), 1)),
    Case("small groups", lambda d: _normal(d, 3, d.odd(34, 50), d.choice([2, 4]))),
    Case("large groups", lambda d: _normal(d, 3, d.odd(300, 400), d.choice([128, 256]))),
    Case("many rows", lambda d: _normal(d, d.odd(67, 79), d.odd(17, 31), 16)),
    Case("strided rows", lambda d: _normal(d, 5, d.odd(34, 60), 16, gap=d.integer(3, 30))),
    Case("strided mantissas", lambda d: _normal(d, 5, d.odd(34, 60), 16, m_gap=d.integer(3, 30))),
    Case("ties", _ties),
    Case("next to ties", lambda d: _ties(d, 2.0**-12)),
    Case("mantissas that round to 128", _rounding_up_to_128),
    Case("a largest just below a power of two", lambda d: _largest(d, 1 - 2.0**-24)),
    Case("a largest that is a power of two", lambda d: _largest(d, 1.0)),
    Case("sizes far apart", _far_apart),
    Case("groups of zeros", _zeros),
    Case("NaN", lambda d: _with(d, float("nan"), 0.01)),
    Case("infinity", lambda d: _with(d, float("inf"), 0.01)),
    Case("sizes near 2^-126", lambda d: _small(d, -126, -121)),
    Case("subnormal numbers", lambda d: _small(d, -140, -126)),
    Case("sizes near 2^127", _huge),
    Case("fp16", lambda d: _normal(d, d.odd(3, 7), d.odd(66, 90), 32, low=-12, high=3, dtype=FP16)),
    Case("bf16", lambda d: _normal(d, d.odd(3, 7), d.odd(66, 90), 32, dtype=BF16)),
    Case("no rows", lambda d: _normal(d, 0, 40, 32)),
    Case("large", lambda d: _normal(d, d.odd(500, 600), d.odd(4000, 5000), 32, dtype=BF16), tiers=ON_GPU),
    Case("offsets past 2^31", _past_int32, tiers=ON_GPU, live=False, share=0.5),
)

QUANTIZE = Exercise(
    name="mx.quantize",
    entry="quantize",
    points=6,
    about="one exponent a group, and mantissas rounded to the nearest",
    point=("one group", "ties", "a largest just below a power of two"),
    kind="kernel",
    cases=CASES,
    writes=("mantissas", "exponents"),
    oracle=encode,
    precision=Precision(
        good=encode,
        good_is="exact",
        lower=lambda v: encode(v, mantissa=lambda y: y.trunc()),
        lower_is="mantissas cut off",
        floor_ulps=0.0,
    ),
    mistakes=MISTAKES,
    where=wrong_groups,
    shows_not="speed, races between programs, and offsets past 2^31",
)
