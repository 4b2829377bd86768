"""A number in four formats, and the errors of a layer that rounds once or twice."""

from dataclasses import asdict

import ipywidgets
import torch

from course_lib.numerics import accumulate, bits, round_to, signed_ulps
from course_lib.numerics.formats import FORMATS
from course_lib.plots.formats import SHOWN, format_rows, said, title_of
from course_lib.plots.house import axes_or_new, drawn, percent
from course_lib.plots.times import histogram
from course_lib.widgets.explorer import Explorer, powers, slider
from course_lib.widgets.live import Live

__all__ = ["format_explorer", "rounding_errors", "rounding_explorer"]

ELEMENTS = 4000


@drawn
def format_explorer():
    """One number of your choice as fp32, bf16, fp16 and e4m3: its bits in each, and what is lost."""
    axes = axes_or_new(None, 9.6, 1.9)

    def numbers(number, power):
        x = number * 2.0**power
        kept = {of: round_to(x, of) for of in SHOWN}
        rows = [
            {"name": of, "kept": f"{y:.17g}", "bits": str(bits(y, of)).replace(" ", ""), "said": said(x, y)}
            for of, y in kept.items()
        ]
        words = "; ".join(f"{row['name']} {row['said']}" for row in rows)
        return {"rows": rows, "title": title_of(x), "words": words}

    def move(number, power):
        axes.clear()
        format_rows([number * 2.0**power], ax=axes)
        return numbers(number, power)["words"]

    def still():
        numbers = (0.01, 1000.0, 1e6, 2.0**-20)
        return format_rows(numbers, title="More bits of exponent are range, more bits of fraction are precision")

    controls = {
        "number": ipywidgets.FloatText(0.01, description="number", style={"description_width": "11em"}),
        "power": slider("times 2 to the power of", -40, 40, 0),
    }
    alt = (
        "0.01, 1000, a million and 2 to the -20 as bits of fp32, bf16, fp16 and e4m3: fp16 keeps more digits of 0.01 "
        "than bf16, is infinite at a million, and keeps only a subnormal number of the last; e4m3 holds none of the "
        "last three."
    )
    shapes = [FORMATS[of] for of in SHOWN]
    known = [asdict(of) | {"largest": of.largest, "exponent_bits": of.exponent_bits} for of in shapes]
    return Explorer(axes, controls, move, still, alt, Live("formats", numbers, lambda: {"formats": known}))


def rounding_errors(of: str, k: int, accumulator: str = "fp32", seed: int = 0) -> dict[str, torch.Tensor]:
    """Errors of gelu(x . w) in ulps of the format, against float64: GELU on the accumulator, or after rounding it.

    x and w are numbers of the format, k of them, h of size 1; the sum is kept in `accumulator`.
    """
    generator = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(ELEMENTS, k, generator=generator, dtype=torch.float64) for _ in range(2))
    terms = round_to(x, of) * round_to(w * k**-0.5, of)
    h = accumulate(terms, accumulator)
    want = _gelu(terms.sum(-1))
    made = {"fused": _gelu(h), "apart": _gelu(round_to(h, of))}
    return {name: signed_ulps(round_to(y, of), want, of) for name, y in made.items()}


def _gelu(h: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(h, approximate="tanh")


@drawn
def rounding_explorer():
    """Errors of a linear layer with GELU, rounded once or twice, by format, length of the sum and accumulator."""
    axes = axes_or_new(None, 7.4, 3.6)

    def move(of, k, accumulator):
        axes.clear()
        errors = rounding_errors(of, k, of if accumulator == "the same format" else "fp32")
        _draw(axes, errors, of)
        rms = {name: _rms(off) for name, off in errors.items()}
        return ", ".join(f"{name}: {x:.3g} ulps root mean square" for name, x in rms.items())

    def still():
        return _draw(axes_or_new(None, 7.4, 3.6), rounding_errors("bf16", 256), "bf16")

    controls = {
        "of": ipywidgets.Dropdown(options=["bf16", "fp16"], description="format", style={"description_width": "11em"}),
        "k": powers("terms of the sum", range(4, 11), 256),
        "accumulator": ipywidgets.Dropdown(
            options=["fp32", "the same format"], description="sum kept in", style={"description_width": "11em"}
        ),
    }
    alt = (
        "Histogram of errors in units in the last place: rounded once they fill half a unit to either side evenly, "
        "with GELU apart they reach much further out."
    )
    return Explorer(axes, controls, move, still, alt)


def _draw(axes, errors, of):
    share = {name: correct_share(off) for name, off in errors.items()}
    title = f"{of}: {percent(share['fused'])} of the results are the nearest number where they are rounded once, "
    title += f"{percent(share['apart'])} where h was rounded before"
    shown = {name: off[off.abs() <= 4].tolist() for name, off in errors.items()}
    return histogram(shown, axes, xlabel=f"error in ulps of {of} (within 4)", bins=48, title=title)


def correct_share(off: torch.Tensor) -> float:
    """The share of elements within half a unit in the last place."""
    return float((off.abs() <= 0.5).double().mean())


def _rms(off: torch.Tensor) -> float:
    return float(off.square().mean().sqrt())
