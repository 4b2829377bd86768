"""start.axpy: the first Triton kernel."""

import torch

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Mistake, Precision
from autograder.exercises.everywhere import (
    MASK_ONE_TOO_LONG,
    OUT_NEVER_WRITTEN,
    blocks_missing,
    mask_on_load_only,
    mask_one_too_short,
    no_mask,
    x_changed,
)


def _call(draw: Draw, n: int) -> Call:
    a = round(draw.number(1.5, 3.5), 3)
    # positive, so that a * x + y never cancels: one lost sum would make the error of every honest answer look large
    x, y = draw.uniform(n, low=0.5, high=2.0), draw.uniform(n, low=0.5, high=2.0)
    return Call({"a": a, "x": x, "y": y, "out": draw.empty(n)}, f"n = {n}")


def _past_int32(draw: Draw) -> Call:
    """More than 2^31 elements: about 26 GB in all, so only where that much is free."""
    n = 2**31 + draw.integer(1000, 2000)
    x = torch.randn(n, device=draw.device)
    y = torch.randn(n, device=draw.device)
    out = torch.full((n,), float("nan"), device=draw.device)
    return Call({"a": 2.5, "x": x, "y": y, "out": out}, f"n = {n}")


def _both_ends(tensor: torch.Tensor) -> torch.Tensor:
    """The first elements and those on both sides of 2^31: a wrapped offset shows there."""
    return torch.cat([tensor[: 2**16], tensor[-(2**17) :]])


AXPY_CASES = (
    Case("one element", lambda d: _call(d, 1)),
    Case("shorter than any block", lambda d: _call(d, d.integer(2, 30))),
    Case("a power of two", lambda d: _call(d, 2 ** d.integer(12, 13))),
    Case("a partial last block", lambda d: _call(d, 64 * d.integer(70, 110) + d.choice([1, 7, 13, 29, 45, 59]))),
    Case("one past a power of two", lambda d: _call(d, 2**12 + 1)),
    Case("one short of a power of two", lambda d: _call(d, 2**13 - 1)),
    Case("no elements", lambda d: _call(d, 0)),
    Case("more than 2^31 elements", _past_int32, tiers=ON_GPU, live=False, share=1.0, part=_both_ends),
)


def _axpy(v, dtype):
    return v["a"] * v["x"].to(dtype) + v["y"].to(dtype)


def _only(v, keep: slice):
    """The right answer in `keep`, nothing written elsewhere."""
    out = torch.full_like(v["x"], float("nan"), dtype=torch.float64)
    out[keep] = _axpy(v, torch.float64)[keep]
    return {"out": out}


def _in_half(v, what: str):
    """fp16 inputs, and with "all" fp16 products and sums; a compiler may round the factor first or not."""
    x, y = v["x"].half(), v["y"].half()
    a = float(torch.tensor(v["a"]).half()) if what == "all, and a" else v["a"]
    return {"out": _axpy(v | {"x": x, "y": y}, torch.float32) if what == "inputs" else a * x + y}


BLOCKS = tuple(2**k for k in range(4, 15))

AXPY = Exercise(
    name="start.axpy",
    entry="axpy",
    points=5,
    about="programs that cover every element, whatever the length",
    point=("a partial last block", "one past a power of two", "one short of a power of two"),
    kind="kernel",
    cases=AXPY_CASES,
    writes=("out",),
    oracle=lambda v: {"out": _axpy(v, torch.float64)},
    precision=Precision(
        good=lambda v: {"out": _axpy(v, torch.float32)},
        good_is="fp32 throughout",
        lower=lambda v: {"out": _axpy({**v, "x": v["x"].half(), "y": v["y"].half()}, torch.float32)},
        lower_is="inputs rounded to fp16",
    ),
    mistakes=(
        Mistake(
            "int32_offset",
            "Right up to 2^31 elements, wrong beyond: the offset overflows 32 bits. "
            "Widen the program id first: `tl.program_id(0).to(tl.int64) * BLOCK`.",
            sign=lambda e: e.failed_only("more than 2^31 elements"),
        ),
        MASK_ONE_TOO_LONG,
        no_mask(
            "The kernel reads and writes past the end of the arrays when the length is not a multiple of the block. "
            "Give both loads and the store `mask=offs < n`."
        ),
        mask_on_load_only(
            "The loads are masked but the store is not: lanes past the end write what they never should. Give the "
            "store the same mask as the loads."
        ),
        Mistake(
            "writes_into_y",
            "`y` was changed: the result belongs into `out`, and the inputs stay as they are.",
            sign=lambda e: e.changed("y"),
        ),
        x_changed("the result belongs into `out`, and the inputs stay as they are"),
        OUT_NEVER_WRITTEN,
        mask_one_too_short(_only),
        *blocks_missing(_only, BLOCKS),
        Mistake(
            "a_forgotten",
            "This is x + y: the factor `a` is missing.",
            answer=lambda v: {"out": (v["x"] + v["y"]).double()},
        ),
        Mistake(
            "y_forgotten",
            "This is a * x: `y` is missing.",
            answer=lambda v: {"out": (v["a"] * v["x"]).double()},
        ),
        Mistake(
            "a_on_y",
            "This is x + a * y: the factor belongs to `x`.",
            answer=lambda v: {"out": (v["x"] + v["a"] * v["y"]).double()},
        ),
        Mistake(
            "a_on_both",
            "This is a * (x + y): the factor belongs to `x` alone.",
            answer=lambda v: {"out": (v["a"] * (v["x"] + v["y"])).double()},
        ),
        Mistake(
            "minus",
            "This is a * x - y: the sign of `y` is wrong.",
            answer=lambda v: {"out": (v["a"] * v["x"] - v["y"]).double()},
        ),
        Mistake(
            "product",
            "This is a * x * y: `y` is added, not multiplied.",
            answer=lambda v: {"out": (v["a"] * v["x"] * v["y"]).double()},
        ),
        Mistake(
            "a_rounded_to_integer",
            "`a` lost its fraction on the way: it is a floating-point number, not an integer.",
            answer=lambda v: {"out": (int(v["a"]) * v["x"] + v["y"]).double()},
        ),
        Mistake(
            "half_precision",
            "The arithmetic was done in fp16: the error is what 11 significant bits give. Compute in fp32.",
            answer=_in_half,
            variants=("inputs", "all", "all, and a"),
        ),
    ),
    shows_not="speed, loads past the end that are not stored, and offsets past 2^31",
)
