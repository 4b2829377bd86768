"""Rotary embedding, drawn: which elements are a pair, and how far a position turns each of them."""

import numpy as np
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle, Wedge

from course_lib.plots.house import FAINT, INK, PALETTE, axes_or_new, drawn, finish

__all__ = ["dials", "frequencies", "pair_map", "places", "score"]

_TINTS = ("#D6E6F2", "#FBE3D4", "#D4EEE4", "#F6E0EC", "#FBEFD0", "#E6E6E6")


def frequencies(rotary_size: int, base: float = 10000.0) -> np.ndarray:
    """Radians a position of each pair."""
    return base ** (-np.arange(0, rotary_size, 2) / rotary_size)


def places(rotary_size: int, layout: str) -> list[tuple[int, int]]:
    """The two elements of each pair."""
    half = rotary_size // 2
    return [(j, j + half) if layout == "halves" else (2 * j, 2 * j + 1) for j in range(half)]


def score(distance: int, turns: np.ndarray) -> float:
    """Of two equal vectors with length 1 in every pair, turned so far apart."""
    return float(np.cos(distance * turns).sum())


@drawn
def pair_map(head_size: int, rotary_size: int, ax=None, *, title=None):
    """One head in both layouts: the number in a cell is its pair, an arc joins the two elements of a pair."""
    ax = axes_or_new(ax, 7.4, 3.5)
    for y, layout in ((0.0, "halves"), (2.5, "interleaved")):
        pair_of = {d: j for j, pair in enumerate(places(rotary_size, layout)) for d in pair}
        for d in range(head_size):
            j = pair_of.get(d)
            look = {"facecolor": "white", "hatch": "////"} if j is None else {"facecolor": _TINTS[j % len(_TINTS)]}
            ax.add_patch(Rectangle((d - 0.5, y), 1, 1, edgecolor=FAINT, linewidth=0.8, **look))
            if j is not None:
                ax.text(d, y + 0.5, str(j), ha="center", va="center", fontsize=9, color=INK)
        for first, second in places(rotary_size, layout):
            bend = {"connectionstyle": f"arc3,rad={-0.9 if second == first + 1 else -0.28}"}
            ax.add_patch(FancyArrowPatch((first, y), (second, y), arrowstyle="-", color=INK, linewidth=0.8, **bend))
        ax.text(-0.8, y + 0.5, layout, ha="right", va="center", fontsize=9.5)
    ax.set(xlim=(-3.4, head_size - 0.4), ylim=(3.7, -1.2), xlabel="element of the head (hatched: not turned)")
    ax.set_xticks(range(0, head_size, 2))
    ax.set_yticks([])
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)
    return finish(ax, title or _message(head_size, rotary_size))


def _message(head_size: int, rotary_size: int) -> str:
    which = "all" if rotary_size == head_size else f"the first {rotary_size}"
    return (
        f"{rotary_size // 2} pairs of {which} of {head_size} elements: partners lie half a row apart, or side by side"
    )


@drawn
def dials(positions, turns, ax=None, *, title=None):
    """One row for each (position of the query, position of the key), one dial a pair.

    An arrow is where the pair of the query or of the key has been turned from "up"; the wedge between them is the
    distance times the pair's frequency, and its cosine is what the pair adds to the score of two equal vectors.
    """
    ax = axes_or_new(ax, 8.2, 1.0 + 0.8 * len(positions))
    for y, (m, n) in enumerate(positions):
        for x, turn in enumerate(turns):
            _dial(ax, 2.5 * x, 2.9 * y, m * turn, n * turn)
        ax.text(-1.5, 2.9 * y, f"query at {m}\nkey at {n}", ha="right", va="center", fontsize=8.5)
        words = f"distance {m - n}\nscore {score(m - n, turns):.2f} of {len(turns)}"
        ax.text(2.5 * len(turns) - 0.9, 2.9 * y, words, va="center", fontsize=8.5)
    small = {"va": "bottom", "fontsize": 7.5, "color": FAINT, "linespacing": 1.4}
    for x, turn in enumerate(turns):
        ax.text(2.5 * x, -1.35, f"pair {x}\n{_once(turn)}", ha="center", **small)
    ax.text(-1.5, -1.35, "positions for a whole turn", ha="right", **small)
    low = 2.9 * (len(positions) - 1) + 1.2
    for i, (name, style) in enumerate((("query", "-"), ("key", (0, (2, 1))))):
        ax.plot([], [], marker="os"[i], color=PALETTE[i], linestyle=style, markersize=4, label=name)
    ax.legend(loc="upper left", ncols=2, bbox_to_anchor=(0.2, 0.0), borderaxespad=0.1)
    ax.set(xlim=(-6.3, 2.5 * len(turns) + 3.6), ylim=(low, -2.9), aspect="equal")
    ax.set_axis_off()
    return finish(ax, title or "Each pair turns by its own frequency; the wedge between query and key is what counts")


def _dial(ax, x: float, y: float, query: float, key: float) -> None:
    """Angles from up, clockwise: the axes point down, so that is also how they are drawn."""
    ax.add_patch(Circle((x, y), 1, facecolor="white", edgecolor=FAINT, linewidth=0.8))
    between = np.degrees((query - key + np.pi) % (2 * np.pi) - np.pi)
    start = np.degrees(key) - 90
    low, high = sorted((start, start + between))
    if high - low > 0.5:
        ax.add_patch(Wedge((x, y), 0.62, low, high, facecolor=PALETTE[4], alpha=0.45, linewidth=0))
    for angle, i, style, long in ((query, 0, "-", 0.94), (key, 1, (0, (2, 1)), 0.8)):
        tip = (x + long * np.sin(angle), y - long * np.cos(angle))
        ax.plot([x, tip[0]], [y, tip[1]], color=PALETTE[i], linestyle=style, linewidth=1.8)
        ax.plot(*tip, "os"[i], color=PALETTE[i], markersize=4)


def _once(turn: float) -> str:
    return f"{2 * np.pi / turn:,.0f}" if turn < 0.1 else f"{2 * np.pi / turn:.3g}"
