"""What one call costs the host in several ways, from the cheapest to the dearest."""

from matplotlib.ticker import EngFormatter, NullFormatter

from course_lib.plots.house import FAINT, INK, PALETTE, axes_or_new, drawn, finish, quantity

__all__ = ["costs"]


@drawn
def costs(rows, ax=None, *, plain=None, title=None, device=""):
    """One dot for each way, on a log axis, with a bar from the least to the largest time; a line marks the plain call.

    rows: dicts with name, us, low_us and high_us, as benchmarks.dispatch gives them. plain: the name of the call that
    the others are compared with; the first row when absent.
    """
    first = next(row for row in rows if plain in (None, row["name"]))
    ordered = sorted(rows, key=lambda row: row["us"])
    ax = axes_or_new(ax, 7.4, 1.2 + 0.26 * len(ordered))
    for y, row in enumerate(ordered):
        here = row is first
        ax.plot([row["low_us"] * 1e-6, row["high_us"] * 1e-6], [y, y], color=PALETTE[0], linewidth=3, alpha=0.5)
        ax.plot(row["us"] * 1e-6, y, marker="s" if here else "o", color=PALETTE[1] if here else PALETTE[0], zorder=5)
        words = quantity(row["us"] * 1e-6, "s") + ("" if here else f", {row['us'] / first['us']:.3g}x")
        ax.annotate(
            words,
            (max(row["us"], row["high_us"]) * 1e-6, y),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    ax.axvline(first["us"] * 1e-6, color=INK, linewidth=0.8, linestyle=":")
    ax.set_xscale("log")
    least, most = ordered[0]["us"] * 1e-6, max(row["high_us"] for row in ordered) * 1e-6
    ax.set(xlim=(least / 1.4, most * (most / least) ** 0.25 * 1.5), ylim=(len(ordered) - 0.5, -0.5))
    ax.set_xlabel("host time of one call")
    ax.xaxis.set_major_formatter(EngFormatter("s"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_yticks(range(len(ordered)), [row["name"] for row in ordered])
    ax.tick_params(axis="y", length=0, color=FAINT)
    ax.grid(True, axis="x")
    return finish(ax, title or _message(ordered, first), device)


def _message(ordered, first) -> str:
    most = ordered[-1]
    if most is first:
        return f"{first['name']} costs {quantity(first['us'] * 1e-6, 's')}, the others less"
    times = f"{most['us'] / first['us']:.3g} times"
    return f"{first['name']} costs {quantity(first['us'] * 1e-6, 's')}; {most['name']} costs {times} as much"
