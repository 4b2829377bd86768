"""How a grid of Triton programs covers an array, drawn."""

from matplotlib.patches import Rectangle

from course_lib.plots.house import FAINT, INK, PALETTE, axes_or_new, drawn, finish

__all__ = ["grid"]

_MOST_PROGRAMS = 8
_MOST_NUMBERED = 16


@drawn
def grid(n, block, ax=None, *, title=None):
    """An array of n elements cut into programs of `block` lanes, one program a line; masked lanes are hatched."""
    if n < 1 or block < 1:
        raise ValueError(f"need at least one element and one lane: n = {n}, block = {block}")
    programs = -(-n // block)
    shown = list(range(programs))
    if programs > _MOST_PROGRAMS:  # the first ones, a gap, the last ones
        shown = [*range(_MOST_PROGRAMS - 3), None, programs - 2, programs - 1]
    ax = axes_or_new(ax, 7.4, 1.0 + 0.42 * len(shown))
    for y, program in enumerate(shown):
        if program is None:
            ax.text(0.5, y, f"... {programs - len(shown) + 1} more programs ...", transform=ax.get_yaxis_transform(),
                    ha="center", va="center", fontsize=9, color=FAINT)  # fmt: skip
            continue
        _draw_program(ax, y, program * block, n, block)
    ax.set(
        xlim=(-0.01 * block, 1.01 * block),
        ylim=(len(shown) - 0.4, -0.6),
        xlabel="lane: tl.arange(0, BLOCK); hatched lanes are masked",
    )
    ax.set_yticks([y for y, p in enumerate(shown) if p is not None],
                  [f"program {p}" for p in shown if p is not None])  # fmt: skip
    ax.set_xticks([0.5, block - 0.5] if block > 1 else [0.5], [0, block - 1] if block > 1 else [0])
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)
    return finish(ax, title or _message(n, block, programs))


def _draw_program(ax, y, first, n, block):
    """One line of cells; wide programs are drawn as one bar each for the kept and the masked lanes."""
    kept = min(block, n - first)
    fill, masked = (
        {"facecolor": "#D6E6F2", "edgecolor": PALETTE[0]},
        {"facecolor": "white", "edgecolor": FAINT},
    )
    if block <= _MOST_NUMBERED:
        for lane in range(block):
            look = fill if lane < kept else {**masked, "hatch": "////"}
            ax.add_patch(Rectangle((lane, y - 0.36), 1, 0.72, linewidth=0.8, **look))
            ax.text(lane + 0.5, y, str(first + lane), ha="center", va="center", fontsize=8,
                    color=INK if lane < kept else FAINT,
                    bbox=None if lane < kept else {"facecolor": "white", "edgecolor": "none", "pad": 0.8})  # fmt: skip
        return
    spans = [(0, kept, fill, f"{first} to {first + kept - 1}")]
    if kept < block:
        spans.append(
            (
                kept,
                block - kept,
                {**masked, "hatch": "////"},
                f"masked: {first + kept} to {first + block - 1}",
            )
        )
    for start, width, look, words in spans:
        ax.add_patch(Rectangle((start, y - 0.36), width, 0.72, linewidth=0.8, **look))
        if width > 0.2 * block:
            ax.text(start + width / 2, y, words, ha="center", va="center", fontsize=8,
                    bbox={"facecolor": look["facecolor"], "edgecolor": "none", "pad": 1})  # fmt: skip


def _message(n, block, programs) -> str:
    tail = programs * block - n
    many = f"{programs} program{'s' * (programs > 1)} of {block} lanes cover{'s' * (programs == 1)} {n} elements"
    if not tail:
        return f"{many} exactly"
    return f"{many}; the last one masks {tail}" if programs > 1 else f"{many} and masks {tail}"
