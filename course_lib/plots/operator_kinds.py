"""Which kinds of operators a model's FLOPs, bytes and floor belong to, forward and backward."""

from course_lib.plots.house import FAINT, HATCHES, PALETTE, axes_or_new, drawn, finish, percent, quantity

__all__ = ["kinds"]

_LEAST = 0.07  # of a bar: a narrower part has no room for its words


@drawn
def kinds(rows, ax=None, *, title=None, device=""):
    """One bar each for FLOPs, bytes and, where the rows have one, the floor, of either pass, cut by kind.

    rows: what `course_lib.tally.by_kind` returns.
    """
    measures = [("FLOPs", "FLOP", lambda row: row.work.flops), ("bytes", "B", lambda row: row.work.bytes)]
    if all(row.floor_s is not None for row in rows):
        measures.append(("floor", "s", lambda row: row.floor_s))
    names = list(dict.fromkeys(row.kind for row in rows))
    phases = list(dict.fromkeys(row.phase for row in rows))
    bars = [(phase, *measure) for phase in phases for measure in measures]
    ax = axes_or_new(ax, 7.4, 1.6 + 0.42 * len(bars))
    for y, (phase, _, unit, of) in enumerate(bars):
        here = [row for row in rows if row.phase == phase]
        total, left = sum(map(of, here)), 0.0
        for row in here:
            share, i = of(row) / total if total else 0.0, names.index(row.kind)
            ax.barh(
                y, share, left=left, height=0.68, color=PALETTE[i], hatch=HATCHES[i], edgecolor="white", linewidth=1
            )
            if share > _LEAST:
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
                ax.text(left + share / 2, y, percent(share), ha="center", va="center", fontsize=8.5, bbox=box)
            left += share
        ax.text(1.02, y, quantity(total, unit), va="center", fontsize=8.5)
    for i, name in enumerate(names):
        ax.barh(0, 0, color=PALETTE[i], hatch=HATCHES[i], edgecolor="white", label=name)
    ax.set(xlim=(0, 1.18), ylim=(len(bars) - 0.5, -0.5), xlabel="share")
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    ax.set_yticks(range(len(bars)), [f"{phase}: {name}" for phase, name, *_ in bars])
    ax.tick_params(axis="y", length=0, color=FAINT)
    ax.figure.legend(
        *ax.get_legend_handles_labels(), loc="outside lower center", ncols=min(len(names), 5), fontsize=8.5
    )
    return finish(ax, title or _message(rows, measures), device)


def _message(rows, measures) -> str:
    """The kind with most FLOPs, and its share of everything else."""
    first = max(rows, key=lambda row: row.work.flops).kind
    shares = []
    for name, _, of in measures:
        total = sum(map(of, rows))
        shares.append(f"{percent(sum(of(r) for r in rows if r.kind == first) / total if total else 0.0)} of the {name}")
    return f"{first.capitalize()}: {', '.join(shares)}"
