"""From slow to fast in steps: what each change took away, forward and backward, down to the floor."""

import textwrap

from course_lib.plots.house import FAINT, GRID, HATCHES, INK, PALETTE, axes_or_new, drawn, finish, quantity

__all__ = ["waterfall"]


@drawn
def waterfall(steps, floor=None, ax=None, *, title=None, device=""):
    """steps: (name, {"forward": seconds, "backward": seconds}) from slow to fast; floor: seconds of both, or None.

    Each step is a bar of its whole time, cut by pass. What a change took away is a dotted outline on top, and stands in
    brackets; where a step takes longer than the one before, the difference has a plus.
    """
    ax = axes_or_new(ax, 7.6, 4.0)
    passes = list(steps[0][1])
    whole = [sum(each.values()) for _, each in steps]
    for x, (_, each) in enumerate(steps):
        below = 0.0
        for i, name in enumerate(passes):
            ax.bar(x, each[name], bottom=below, width=0.62, color=PALETTE[i], hatch=HATCHES[i], edgecolor="white",
                   linewidth=0.8, label=name if x == 0 else None)  # fmt: skip
            below += each[name]
        words = quantity(below, "s")
        if x:
            gone = whole[x - 1] - below
            words += f"\n({'−' if gone > 0 else '+'}{quantity(abs(gone), 's')})"
            if gone > 0:
                ax.bar(x, gone, bottom=below, width=0.62, facecolor="none", edgecolor=FAINT, linewidth=0.8,
                       linestyle=":")  # fmt: skip
        ax.annotate(words, (x, max(below, whole[max(0, x - 1)])), xytext=(0, 4), textcoords="offset points",
                    ha="center", fontsize=8.5)  # fmt: skip
    if floor:
        x = len(steps)
        ax.bar(x, floor, width=0.62, color=GRID, edgecolor=INK, linewidth=0.8)
        ax.annotate(quantity(floor, "s"), (x, floor), xytext=(0, 4), textcoords="offset points", ha="center",
                    fontsize=8.5)  # fmt: skip
        ax.axhline(floor, color=INK, linestyle="--", linewidth=1)
    names = [name for name, _ in steps] + (["floor of the products"] if floor else [])
    ax.set(ylim=(0, 1.2 * max(whole)), ylabel="time of a step")
    ax.set_xlabel("in brackets: the difference from the step before", loc="left")
    ax.set_xticks(range(len(names)), [textwrap.fill(name, 17) for name in names], fontsize=8)
    ax.yaxis.set_major_formatter(lambda value, _: quantity(value, "s"))
    ax.grid(True, axis="y")
    ax.legend(loc="upper right")
    least = min(whole)  # steps after it were taken for something else, such as memory
    said = f"From {quantity(whole[0], 's')} to {quantity(least, 's')}"
    if floor:
        said += f": {least / floor:.3g} times the floor of the products"
    return finish(ax, title or said, device)
