"""How a figure of this course looks, and how it is shown: fonts, colours that also work in grey, alt text."""

import base64
import contextlib
import functools
import io
import textwrap
from html import escape

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

__all__ = [
    "HATCHES",
    "LINES",
    "MARKERS",
    "PALETTE",
    "Shown",
    "axes_or_new",
    "bundle",
    "description",
    "drawn",
    "figure",
    "finish",
    "look",
    "percent",
    "png",
    "quantity",
    "show",
    "style",
    "two_to",
]

# Okabe and Ito's colours, a grey for their yellow, in an order in which neighbours also differ in lightness.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C")
# Colour is never the only difference: series also differ by marker and line, areas by hatch.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 3)), (0, (9, 2, 3, 2)))
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++", "oo", "**")
INK, FAINT, GRID = "#222222", "#666666", "#DDDDDD"

_STYLE = {
    "font.family": "DejaVu Sans",  # travels with matplotlib, so figures are the same on every machine
    "font.size": 9.5,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlepad": 8,
    "axes.labelsize": 9.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": True,  # white behind the words, so that no line runs through them
    "legend.framealpha": 1,
    "legend.edgecolor": "none",
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "lines.linewidth": 1.6,
    "lines.markersize": 6,
    "hatch.linewidth": 0.7,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}
_DPI = 144


def look(i: int) -> dict:
    """Colour, marker and line of the i-th series."""
    i %= len(PALETTE)
    return {"color": PALETTE[i], "marker": MARKERS[i], "linestyle": LINES[i]}


@contextlib.contextmanager
def style():
    """The house style inside a with block; nothing outside of it changes."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a style set elsewhere must not leak in; the backend stays
        matplotlib.rcParams.update(_STYLE)
        yield


def drawn(function):
    """Decorator: the function draws in the house style."""

    @functools.wraps(function)
    def styled(*args, **kwargs):
        with style():
            return function(*args, **kwargs)

    return styled


@drawn
def figure(width: float = 7.0, height: float = 4.2, rows: int = 1, columns: int = 1):
    """A new Figure and its Axes (an array of them when there are several), in inches.

    The figure is not registered with pyplot: it needs no closing, and a notebook shows it when `show` is called
    and not a second time at the end of the cell.
    """
    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    axes = made.subplots(rows, columns)
    for one in made.axes:
        # ticks are made late, when the style may no longer hold: tell the axes now
        one.tick_params(labelsize=_STYLE["xtick.labelsize"], color=FAINT, labelcolor=INK)
    return made, axes


def axes_or_new(ax, width: float, height: float):
    """The given Axes, or those of a new figure of this size."""
    return ax if ax is not None else figure(width, height)[1]


def finish(ax, title: str, device: str = "", note: str = ""):
    """Set the message as title, wrapped to the width, and the device and a note below in small print."""
    points_wide = ax.get_position().width * ax.figure.get_figwidth() * 72
    ax.set_title(_wrapped(title, max(20, int(points_wide / 6.3))), loc="left")
    small = "; ".join(part for part in (note, device) if part)
    if small:
        wrapped = textwrap.fill(small, max(20, int(points_wide / 4.2)))
        ax.annotate(wrapped, (1, 0), xycoords="axes fraction", xytext=(0, -40), textcoords="offset points",
                    ha="right", va="top", fontsize=7.5, color=FAINT)  # fmt: skip
    return ax


def _wrapped(text: str, width: int) -> str:
    """As few lines as the width needs, of about equal length."""
    lines = textwrap.wrap(text, width)
    while width > 1 and len(shorter := textwrap.wrap(text, width - 1)) == len(lines):
        lines, width = shorter, width - 1
    return "\n".join(lines)


def quantity(value: float, unit: str = "") -> str:
    """Three digits with a prefix: quantity(7.12e-5, "s") is "71.2 µs", quantity(6.8e14, "FLOP/s") "680 TFLOP/s"."""
    if value == 0 or value != value or abs(value) == float("inf"):
        return f"{value:g} {unit}".rstrip()
    prefixes = {-4: "p", -3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P", 6: "E"}
    rounded = float(f"{value:.3g}")  # before the prefix is chosen: 999.9 is 1 k
    power = next((p for p in sorted(prefixes, reverse=True) if abs(rounded) >= 1000.0**p), -4)
    return f"{float(f'{rounded / 1000.0**power:.3g}'):g} {prefixes[power]}{unit}".rstrip()


def percent(share: float) -> str:
    """Whole per cent; what would round to nothing keeps one digit: percent(0.002) is "0.2 %"."""
    return f"{100 * share:.1g} %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def two_to(power: int) -> str:
    """Plain text for a power of two: two_to(26) is "2²⁶"."""
    return "2" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


@drawn
def png(of) -> bytes:
    """The picture of a Figure or Axes. The same data gives the same bytes.

    256 colours chosen for coverage (the default choice loses the colour of a single marker) stay within 1 of 255
    of the drawing, and make notebooks a third as large.
    """
    drawing, data = io.BytesIO(), io.BytesIO()
    _figure_of(of).savefig(drawing, format="png", dpi=_DPI)
    with Image.open(drawing) as picture:
        few = picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(data, "PNG", optimize=True)
    return data.getvalue()


def show(of, *, alt: str) -> None:
    """Display a Figure, or the one that an Axes is part of, with words for those who do not see it.

    The picture is image/png, with the text as `alt` in its metadata. Neither JupyterLab nor nbconvert's lab
    template reads that, so the words follow as HTML that only screen readers show. (An <img> inside HTML would
    do both at once, but viewers that clean HTML would lose the picture; these only make the words visible.)
    """
    from IPython.display import display

    if not alt.strip():
        raise ValueError("a figure needs alt text: say in a sentence what it shows")
    display(Shown(*bundle(of, alt)), Shown(description(alt)))


def bundle(of, alt: str) -> tuple[dict, dict]:
    """The picture as display data and metadata, for objects that show more than a figure."""
    width, height = _figure_of(of).get_size_inches()
    size = {"width": round(width * 96), "height": round(height * 96)}  # drawn finer than shown, for sharp screens
    picture = base64.b64encode(png(of)).decode()
    return {"image/png": picture, "text/plain": alt}, {"image/png": {"alt": alt, **size}}


def description(alt: str) -> dict:
    """Display data for words that are read aloud and not seen."""
    unseen = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap"
    return {"text/html": f'<div style="{unseen}">Figure: {escape(alt)}</div>', "text/plain": ""}


class Shown:
    """Display data as an object; outside of a notebook it prints as its plain text."""

    def __init__(self, data: dict, metadata: dict | None = None):
        self.data, self.metadata = data, metadata or {}

    def _repr_mimebundle_(self, include=None, exclude=None):
        return self.data, self.metadata

    def __repr__(self):
        return self.data["text/plain"]


def _figure_of(of) -> Figure:
    return of if isinstance(of, Figure) else of.figure
