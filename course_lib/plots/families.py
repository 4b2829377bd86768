"""Time by family of operators, a bar each, and how much of it is the floor; forward and backward side by side."""

from course_lib.plots.house import FAINT, INK, PALETTE, axes_or_new, drawn, finish, percent, quantity

__all__ = ["families"]


@drawn
def families(rows, ax=None, *, title=None, device=""):
    """rows: what `course_lib.profiling.families.by_family` returns. Families stand in the order of their rows."""
    names = list(dict.fromkeys(row.family for row in rows))
    phases = list(dict.fromkeys(row.phase for row in rows))
    ax = axes_or_new(ax, 7.4, 1.5 + 0.52 * len(names))
    longest = max(max(row.seconds, row.floor_s or 0) for row in rows)
    high = 0.8 / len(phases)
    for row in rows:
        side = phases.index(row.phase)
        y = names.index(row.family) + (side - (len(phases) - 1) / 2) * high
        ax.barh(y, row.seconds, height=0.9 * high, color=PALETTE[side], hatch=("", "////")[side % 2],
                edgecolor="white", linewidth=0.5)  # fmt: skip
        if row.floor_s is not None:
            ends = y - 0.45 * high, y + 0.45 * high
            ax.plot([row.floor_s] * 2, ends, color="white", linewidth=3.4, solid_capstyle="butt")
            ax.plot([row.floor_s] * 2, ends, color=INK, linewidth=1.8, solid_capstyle="butt")
        ax.annotate(quantity(row.seconds, "s"), (max(row.seconds, row.floor_s or 0), y), xytext=(5, 0),
                    textcoords="offset points", va="center", fontsize=8)  # fmt: skip
    for side, phase in enumerate(phases):
        ax.barh(0, 0, color=PALETTE[side], hatch=("", "////")[side % 2], edgecolor="white", label=phase)
    ax.plot([], [], color=INK, linewidth=1.8, label="floor")
    ax.set(xlim=(0, 1.2 * longest), ylim=(len(names) - 0.5, -0.5), xlabel="time of the device")
    ax.set_yticks(range(len(names)), names)
    ax.xaxis.set_major_formatter(lambda value, _: quantity(value, "s"))
    ax.tick_params(axis="y", length=0, color=FAINT)
    ax.grid(True, axis="x")
    ax.legend(loc="lower right")
    return finish(ax, title or _message(rows, names), device)


def _message(rows, names) -> str:
    """What the family with the most time takes of it, and how much of the whole is floor."""
    whole = sum(row.seconds for row in rows)
    first = max(names, key=lambda name: sum(row.seconds for row in rows if row.family == name))
    share = sum(row.seconds for row in rows if row.family == first) / whole
    floor = sum(row.floor_s or 0.0 for row in rows)
    return f"{first.capitalize()}: {percent(share)} of the time; the floor of all is {percent(floor / whole)} of it"
