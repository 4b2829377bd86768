"""roofline.softmax: a reduction and a division in one read and one write."""

import math

import torch

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Precision, Speed
from autograder.exercises.dtypes import DTYPE_NAMES, FP16, FP32, NEXT_DOWN_IS, next_format_down
from autograder.exercises.roofline.softmax_mistakes import MISTAKES, softmax_rows
from autograder.exercises.strides import far_apart

MINUS_INF = -float("inf")


def _call(draw: Draw, x: torch.Tensor, gap=0, out_gap=0, out_dtype=None) -> Call:
    """`x` laid out with `gap` unused elements behind every row, the output with `out_gap`.

    The first row has its maximum at the end: an answer that goes wrong when a later block holds it would otherwise be
    right in some draws.
    """
    rows, width = x.shape
    if x.numel():
        first, at = x[0], x[0].argmax().view(1)  # no number of the device is asked for
        top, end = first[at], first[-1:].clone()
        first[at], first[-1:] = end, top
    out = draw.empty(rows, width, dtype=out_dtype or x.dtype, strides=(width + out_gap, 1))
    sizes = f"{rows} rows of {width}, {DTYPE_NAMES[x.dtype]}"
    if out.dtype != x.dtype:
        sizes += f" to {DTYPE_NAMES[out.dtype]}"
    if gap or out_gap:
        sizes += f", row strides {width + gap} and {width + out_gap}"
    return Call({"x": draw.lay_out(x, (width + gap, 1)), "out": out}, sizes)


# Bounds of sums of exp(x - max). With FEW a constant of 1e-5 in the sum is within the limit and 1e-4 is not; with MORE
# 1e-4 is and 1e-3 is not.
FEW, MORE = (2.2, 10.0), (20.0, 100.0)


def _normal(draw: Draw, rows: int, width: int, dtype=FP32, sums=None, std=2.0, **layout) -> Call:
    x = draw.normal(rows, width, dtype=dtype, std=std)
    return _call(draw, _summing_to(x, *sums) if sums else x, **layout)


def _summing_to(x: torch.Tensor, least: float, most: float) -> torch.Tensor:
    """x with the largest of each row moved until exp(x - max) adds up to no less and no more than that.

    What a constant in the sum does depends on the sum, and would show in some draws only.
    """
    at, level = x.argmax(1, keepdim=True), x.topk(math.ceil(least) + 1).values[:, -1:]
    top, x = x.gather(1, at).double(), x.minimum(level)  # else the second largest can be most of the sum
    rest = x.double().scatter(1, at, MINUS_INF).logsumexp(1, keepdim=True)
    top = top.clamp(rest - math.log(most - 1), rest - math.log(least - 1))
    return x.scatter(1, at, top.to(x.dtype))


def _empty_rows(draw: Draw) -> Call:
    """Two rows of only -inf, one of them the last, among rows without any; the first is never empty."""
    x = _summing_to(draw.normal(6, draw.odd(66, 90)), *FEW)
    x[[draw.integer(1, 3), 5]] = MINUS_INF
    return _call(draw, x)


def _some_inf(draw: Draw) -> Call:
    x = draw.normal(5, draw.odd(80, 126))
    x[draw.uniform(*x.shape) < 0.4] = MINUS_INF
    x[:, 0] = 0.5  # no row is empty
    return _call(draw, _summing_to(x, *FEW))


def _inf_first(draw: Draw) -> Call:
    x = draw.normal(2, draw.integer(3080, 3200))
    x[:, : draw.integer(2060, 2500)] = MINUS_INF
    return _call(draw, x)


def _large(draw: Draw) -> Call:
    """Anything in +-1e4, and rows that lie high or low as a whole, close enough for several terms to count."""
    width = draw.odd(66, 100)
    spread = draw.uniform(4, width, low=-1e4, high=1e4)
    close = draw.normal(2, width) + torch.tensor([[9990.0], [-5000.0]], device=draw.device)
    return _call(draw, torch.cat([spread, close]))


def _very_negative(draw: Draw) -> Call:
    return _call(draw, draw.uniform(4, 2 * draw.integer(20, 28) + 1, low=-1e4, high=-9992.0))


def _past_int32(draw: Draw) -> Call:
    """The third row of x begins past 2^31 elements. 4.3 GB, nearly all of it gap."""
    x = far_apart(draw.normal(3, draw.integer(1040, 1100), dtype=FP16))
    out = draw.empty(*x.shape, dtype=FP16)
    return Call({"x": x, "out": out}, f"3 rows of {x.shape[1]}, fp16, row strides {x.stride(0)} and {out.stride(0)}")


# No range of widths crosses a multiple of a likely block: how many blocks hold a row is the same in every draw.
CASES = (
    Case("one row", lambda d: _normal(d, 1, d.integer(40, 60), sums=FEW)),
    Case("width one", lambda d: _normal(d, d.integer(3, 6), 1)),
    Case("a power of two", lambda d: _normal(d, 5, 128, sums=FEW)),
    Case("an odd width", lambda d: _normal(d, d.integer(5, 7), d.odd(130, 250), sums=FEW)),
    Case("many short rows", lambda d: _normal(d, d.odd(50, 62), d.integer(5, 7))),
    Case("strided rows", lambda d: _normal(d, d.integer(4, 6), d.odd(66, 90), sums=FEW, gap=d.integer(3, 40))),
    Case("strided output", lambda d: _normal(d, d.integer(4, 6), d.odd(66, 90), sums=FEW, out_gap=d.integer(3, 40))),
    Case("rows of only -inf", _empty_rows),
    Case("some -inf", _some_inf),
    Case("-inf in the first columns", _inf_first),
    Case("large magnitudes", _large),
    Case("very negative rows", _very_negative),
    # sums so large that no constant up to 0.01 shows in fp16
    Case("fp16", lambda d: _normal(d, 4, d.odd(130, 200), FP16, std=1.0)),
    Case("fp16 in, fp32 out", lambda d: _normal(d, 3, d.integer(516, 900), FP16, sums=FEW, out_dtype=FP32)),
    Case("a long row", lambda d: _normal(d, 2, d.odd(9000, 16380), sums=MORE)),
    Case("the longest row", lambda d: _normal(d, 1, 16384, sums=MORE)),
    Case("no rows", lambda d: _normal(d, 0, 7)),
    Case("bf16", lambda d: _normal(d, 300, d.integer(1040, 1100), torch.bfloat16), tiers=ON_GPU),
    Case("many long rows", lambda d: _normal(d, 4099, d.odd(4100, 5000)), tiers=ON_GPU),
    Case("offsets past 2^31", _past_int32, tiers=ON_GPU, live=False, share=0.5),
)


def _rounded_differences(x: torch.Tensor) -> torch.Tensor:
    """Rounding x itself would move the maximum of large numbers, which is a different answer and not a rough one."""
    top = x.float().amax(dim=1, keepdim=True)
    return next_format_down(x.float() - torch.where(top.isinf(), 0.0, top), x.dtype)


def _floor_s(v, ceilings) -> float:
    """One read and one write."""
    x, out = v["x"], v["out"]
    return x.numel() * (x.element_size() + out.element_size()) / ceilings.bytes_per_s


SOFTMAX = Exercise(
    name="roofline.softmax",
    entry="softmax",
    points=8,
    about="a softmax that no row overflows, in blocks where rows are long",
    point=("large magnitudes", "very negative rows", "a long row"),
    kind="kernel",
    cases=CASES,
    writes=("out",),
    oracle=lambda v: {"out": softmax_rows(v["x"].double())},
    precision=Precision(
        good=lambda v: {"out": softmax_rows(v["x"].float())},
        good_is="fp32 throughout",
        lower=lambda v: {"out": softmax_rows(_rounded_differences(v["x"]))},
        lower_is=f"differences from the maximum {NEXT_DOWN_IS}",
    ),
    mistakes=MISTAKES,
    speed=Speed(
        points=4,
        cases=(
            Case("narrow rows", lambda d: _normal(d, d.sized(2**16), 1024)),
            Case("medium rows", lambda d: _normal(d, d.sized(2**14), 4096, FP16)),
            Case("wide rows", lambda d: _normal(d, d.sized(2**12), 16384)),
        ),
        floor_s=_floor_s,
        reference="course_lib.kernels.softmax:softmax",
    ),
    shows_not="speed, bf16, races between programs, and offsets past 2^31",
)
