"""One number in several formats, bit by bit: what each of them keeps of it."""

from math import isinf

from course_lib.numerics import bits, round_to
from course_lib.numerics.formats import FORMATS
from course_lib.plots.bits import _boxes, _number
from course_lib.plots.house import INK, axes_or_new, drawn, finish

__all__ = ["SHOWN", "format_rows", "said", "title_of"]

SHOWN = ("fp32", "bf16", "fp16", "e4m3")


def said(x: float, kept: float) -> str:
    """What a format makes of x: its number, and how far that is from x, as a share of x."""
    if isinf(kept) or kept != kept:
        return f"{'NaN' if kept != kept else _number(kept)}: too large"
    if kept == x:
        return f"{kept:.8g}, exact"
    if kept == 0:
        return "0: too small"
    return f"{kept:.8g}, off by {abs(kept - x) / abs(x):.1g}"


def _name(x: float) -> str:
    """In decimals where four digits say it, else by a power of two."""
    return f"{x:.4g}" if float(f"{x:.4g}") == x else _number(x)


def title_of(x: float, formats=SHOWN) -> str:
    return f"{_name(x)} in {len(formats)} formats: sign, exponent, fraction"


@drawn
def format_rows(numbers, formats=SHOWN, ax=None, *, title=None):
    """Every number in every format: sign, exponent, fraction, and the number that was kept."""
    rows = [(x, of) for x in numbers for of in formats]
    gaps = len(numbers) - 1
    ax = axes_or_new(ax, 9.6, 0.7 + 0.29 * (len(rows) + gaps))
    for i, (x, of) in enumerate(rows):
        y = 1.35 * (i + i // len(formats))
        kept = round_to(float(x), of)
        one, shape = bits(kept, of), FORMATS[of]
        kinds = "s" + "e" * shape.exponent_bits + "f" * shape.fraction_bits
        if i % len(formats) == 0 and len(numbers) > 1:
            ax.text(-9.5, y + 0.5, _name(float(x)), ha="left", va="center", fontsize=9.5, weight="bold")
        ax.text(-0.5, y + 0.5, of, ha="right", va="center", fontsize=9.5)
        end = _boxes(ax, 0, y, one.sign + one.exponent + one.fraction, kinds)
        ax.text(end + 0.5, y + 0.5, said(float(x), kept), va="center", fontsize=9, color=INK)
    ax.set(xlim=(-10, 52), ylim=(1.35 * (len(rows) + gaps), -0.3))
    ax.set_axis_off()
    return finish(ax, title or title_of(float(numbers[0]), formats))
