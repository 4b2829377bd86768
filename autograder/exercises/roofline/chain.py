"""roofline.chain: many cosines for one read and one write."""

import torch

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Mistake, Precision, Speed
from autograder.exercises.everywhere import (
    MASK_ONE_TOO_LONG,
    OUT_NEVER_WRITTEN,
    blocks_missing,
    mask_on_load_only,
    mask_one_too_short,
    no_mask,
    x_changed,
)

BLOCKS = tuple(2**k for k in range(4, 15))


def _call(draw: Draw, shape: tuple[int, ...], repeat: int, scale: float = 2.0) -> Call:
    x = draw.uniform(*shape, low=-scale, high=scale)
    sizes = f"shape = {'x'.join(map(str, shape))}, repeat = {repeat}"
    return Call({"x": x, "repeat": repeat, "out": draw.empty(*shape)}, sizes)


# Every cosine pulls its argument closer to 0.739, the number that is its own cosine. After some twenty of them a
# chain that is one too short or too long gives the same fp32 numbers, so most cases have few.
CASES = (
    Case("one cosine", lambda d: _call(d, (d.integer(1100, 1900),), 1)),
    Case("two cosines", lambda d: _call(d, (2 ** d.integer(10, 11),), 2)),
    Case("a few cosines", lambda d: _call(d, (32 * d.integer(60, 90) + d.choice([3, 5, 11, 29]),), d.integer(3, 9))),
    Case("an odd length", lambda d: _call(d, (64 * d.integer(70, 100) + d.choice([1, 13, 33, 63]),), 3)),
    Case("shorter than any block", lambda d: _call(d, (d.integer(2, 15),), d.integer(2, 5))),
    Case("one element", lambda d: _call(d, (1,), 2)),
    Case("no elements", lambda d: _call(d, (0,), 4)),
    Case("three dimensions", lambda d: _call(d, (d.integer(3, 7), d.integer(5, 11), d.integer(13, 29)), 2)),
    Case("large arguments", lambda d: _call(d, (d.integer(400, 800),), 1, scale=5000.0)),
    Case("64 cosines", lambda d: _call(d, (d.integer(500, 900),), 64)),
    Case("millions of elements", lambda d: _call(d, (2**24 + d.integer(1, 999),), 5), tiers=ON_GPU),
)


def _chain(x: torch.Tensor, repeat: int) -> torch.Tensor:
    for _ in range(repeat):
        x = torch.cos(x)
    return x


def _rounded_chain(x: torch.Tensor, repeat: int, dtype: torch.dtype, first: bool = True) -> torch.Tensor:
    """Every value between two cosines is held in `dtype`, and x too when `first`."""
    x = x.to(dtype).float() if first else x
    for _ in range(repeat):
        x = torch.cos(x).to(dtype).float()
    return x


def _only(v, keep: slice):
    """The right answer in `keep` of the flattened elements, nothing written elsewhere."""
    out = torch.full_like(v["x"], float("nan"), dtype=torch.float64)
    out.flatten()[keep] = _chain(v["x"].double(), v["repeat"]).flatten()[keep]
    return {"out": out}


def _sines(x: torch.Tensor, repeat: int) -> torch.Tensor:
    for _ in range(repeat):
        x = torch.sin(x)
    return x


def _degrees(x: torch.Tensor, repeat: int) -> torch.Tensor:
    for _ in range(repeat):
        x = torch.cos(x * (torch.pi / 180))
    return x


def _series(x: torch.Tensor, repeat: int, terms: int) -> torch.Tensor:
    """1 - x^2/2 + x^4/24 - ..."""
    for _ in range(repeat):
        total = term = torch.ones_like(x)
        for k in range(1, terms):
            term = term * -(x * x) / (2 * k * (2 * k - 1))
            total = total + term
        x = total
    return x


def _floor_s(v, ceilings) -> float:
    """One read and one write of every element, or every cosine, whichever takes longer."""
    n = v["x"].numel()
    return max(8 * n / ceilings.bytes_per_s, v["repeat"] * n / ceilings.cos_per_s)


def _elements(v) -> int:
    return v["x"].numel()


CHAIN = Exercise(
    name="roofline.chain",
    entry="cos_chain",
    points=5,
    about="a chain of any length in one kernel",
    point=("a few cosines", "64 cosines"),
    kind="kernel",
    cases=CASES,
    writes=("out",),
    oracle=lambda v: {"out": _chain(v["x"].double(), v["repeat"])},
    precision=Precision(
        good=lambda v: {"out": _chain(v["x"], v["repeat"])},
        good_is="fp32 throughout",
        lower=lambda v: {"out": _rounded_chain(v["x"], v["repeat"], torch.float16, first=False)},
        lower_is="every cosine rounded to fp16",
    ),
    mistakes=(
        MASK_ONE_TOO_LONG,
        no_mask(
            "The kernel reads and writes past the end of the arrays when the length is not a multiple of the block. "
            "Give the load and the store `mask=offs < n`."
        ),
        mask_on_load_only(
            "The load is masked but the store is not: lanes past the end write what they never should. Give the store"
            " the same mask as the load."
        ),
        x_changed("intermediate values belong into registers, the result into `out`"),
        OUT_NEVER_WRITTEN,
        Mistake(
            "reduced_badly",
            "Right for small arguments, wrong for large ones: the argument is brought into one turn with too few "
            "digits, as a fast approximate cosine or a subtraction of `6.28...` does. Use `tl.cos`.",
            sign=lambda e: e.failed_only("large arguments"),
        ),
        mask_one_too_short(_only),
        Mistake(
            "first_dimension_only",
            "Only the first `x.shape[0]` elements are computed: the number of elements is `x.numel()`.",
            answer=lambda v: _only(v, slice(0, v["x"].shape[0])) if v["x"].dim() > 1 else {},
        ),
        *blocks_missing(_only, BLOCKS),
        Mistake(
            "one_cosine_only",
            "This is one cosine, whatever `repeat` says: every turn of the loop must take the cosine of what the turn "
            "before made.",
            answer=lambda v: {"out": _chain(v["x"], 1)},
        ),
        Mistake(
            "two_cosines_always",
            "This is the cosine of the cosine, whatever `repeat` says: pass `repeat` to the kernel and loop over it.",
            answer=lambda v: {"out": _chain(v["x"], 2)},
        ),
        Mistake(
            "one_too_few",
            "One cosine is missing: the loop makes `repeat - 1` turns.",
            answer=lambda v: {"out": _chain(v["x"], v["repeat"] - 1)},
        ),
        Mistake(
            "one_too_many",
            "There is one cosine too many: the value was already a cosine when the loop began.",
            answer=lambda v: {"out": _chain(v["x"], v["repeat"] + 1)},
        ),
        Mistake(
            "doubling",
            "The number of cosines doubles with every turn: one cosine a turn, `repeat` turns.",
            answer=lambda v: {"out": _chain(v["x"], 2 * v["repeat"])},
        ),
        Mistake(
            "sine",
            "This is the sine. The exercise asks for the cosine.",
            answer=lambda v: {"out": _sines(v["x"], v["repeat"])},
        ),
        Mistake(
            "power",
            "This is the cosine multiplied with itself: cos(cos(x)) is the cosine of a cosine, not cos(x) * cos(x).",
            answer=lambda v: {"out": torch.cos(v["x"]) ** v["repeat"]},
        ),
        Mistake(
            "argument_scaled",
            "This is cos(repeat * x), one cosine of a larger number.",
            answer=lambda v: {"out": torch.cos(v["repeat"] * v["x"])},
        ),
        Mistake(
            "sum_of_cosines",
            "The cosines are added up: each one should replace the value, not be added to it.",
            answer=lambda v: {"out": v["repeat"] * torch.cos(v["x"])},
        ),
        Mistake(
            "degrees",
            "The argument is taken for degrees: `tl.cos` wants radians, and so does the exercise.",
            answer=lambda v: {"out": _degrees(v["x"], v["repeat"])},
        ),
        Mistake(
            "half_precision",
            "Values were rounded to 16 bits between two cosines: the error is what so few digits give. Stay in fp32.",
            answer=lambda v, dtype: {"out": _rounded_chain(v["x"], v["repeat"], dtype)},
            variants=(torch.float16, torch.bfloat16),
        ),
        Mistake(
            "series_cut_off",
            "The error grows with the argument: a few terms of the power series are no cosine. Use `tl.cos`.",
            answer=lambda v, terms: {"out": _series(v["x"], v["repeat"], terms)},
            variants=(3, 4, 5),
        ),
    ),
    speed=Speed(
        points=3,
        cases=(
            Case("bytes decide", lambda d: _call(d, (d.sized(2**27),), 1)),
            Case("cosines decide", lambda d: _call(d, (d.sized(2**26),), 16)),
        ),
        floor_s=_floor_s,
        reference="course_lib.kernels.pointwise:cos_chain",
    ),
    shows_not="speed, loads past the end that are not stored, and a GPU's approximations of a cosine",
)
