"""Who holds what before, during and after a collective: one row a rank, one square a part of the buffer."""

from matplotlib.patches import Rectangle

from course_lib.plots.house import INK, PALETTE, drawn, figure

__all__ = ["AFTER", "collectives", "ring"]

# A square holds a set: the ranks whose numbers are summed in it. Rank r begins with {r} in every part. Where parts are
# gathered, it begins with {r} in its own part only.
Held = list[list[frozenset[int]]]  # rank -> part -> ranks


def whole(ranks: int) -> Held:
    return [[frozenset([rank])] * ranks for rank in range(ranks)]


def own_part(ranks: int, held: frozenset[int] | None = None) -> Held:
    """Rank r has its r-th part and nothing else."""
    return [
        [(held or frozenset([rank])) if part == rank else frozenset() for part in range(ranks)] for rank in range(ranks)
    ]


AFTER = {
    "broadcast": lambda n: (whole(n), [[frozenset([0])] * n for _ in range(n)]),
    "all-gather": lambda n: (own_part(n), [[frozenset([part]) for part in range(n)] for _ in range(n)]),
    "reduce-scatter": lambda n: (whole(n), own_part(n, frozenset(range(n)))),
    "all-reduce": lambda n: (whole(n), [[frozenset(range(n))] * n for _ in range(n)]),
}


def ring_steps(ranks: int) -> list[Held]:
    """The buffers before and after each of the 2 (N - 1) steps."""
    held = whole(ranks)
    found = [held]
    for step in range(2 * (ranks - 1)):
        adds = step < ranks - 1
        after = [list(row) for row in held]
        for rank in range(ranks):
            part = (rank - step) % ranks
            to = (rank + 1) % ranks
            after[to][part] = held[rank][part] | held[to][part] if adds else held[rank][part]
        held = after
        found.append(held)
    return found


@drawn
def collectives(ranks=4):
    """Before and after each of the four collectives. Returns the figure."""
    made, axes = figure(7.8, 4.6, columns=len(AFTER))
    made.suptitle("An all-reduce is a reduce-scatter and an all-gather", x=0.01, ha="left", weight="bold")
    for ax, (name, held) in zip(axes, AFTER.items(), strict=True):
        before, after = held(ranks)
        _squares(ax, before, 0)
        _squares(ax, after, ranks + 1.2)
        ax.set_title(name)
        _frame(ax, ranks, 2 * ranks + 1.2)
        ax.text(-0.3, -0.35, "before", fontsize=8)
        ax.text(-0.3, ranks + 0.85, "after", fontsize=8)
    return made


@drawn
def ring(ranks=4):
    """Every step of a ring all-reduce beside the one before. Returns the figure."""
    steps = ring_steps(ranks)
    made, axes = figure(1.35 * len(steps), 2.5, columns=len(steps))
    made.suptitle(
        f"{ranks - 1} steps add up, {ranks - 1} hand round: in each every rank sends one part\n"
        "(01: the sum of 0 and 1; orange: just received)",
        x=0.01, ha="left", weight="bold",
    )  # fmt: skip
    for number, (ax, held) in enumerate(zip(axes, steps, strict=True)):
        before = steps[number - 1] if number else held
        came = {(r, p) for r in range(ranks) for p in range(ranks) if held[r][p] != before[r][p]}
        _squares(ax, held, 0, came)
        ax.set_title(f"step {number}" if number else "before", fontsize=9)
        _frame(ax, ranks, ranks)
    return made


def _squares(ax, held: Held, down: float, came=frozenset()) -> None:
    ranks = len(held)
    for row, parts in enumerate(held):
        for part, summed in enumerate(parts):
            share = len(summed) / ranks
            colour = "white" if not summed else PALETTE[0]
            ax.add_patch(
                Rectangle((part, down + row), 0.92, 0.92, facecolor=colour, alpha=0.15 + 0.7 * share if summed else 1,
                          edgecolor=PALETTE[1] if (row, part) in came else INK,
                          linewidth=2 if (row, part) in came else 0.5)
            )  # fmt: skip
            word = "all" if len(summed) == ranks > 1 else "".join(map(str, sorted(summed)))
            light = len(summed) == ranks
            ax.text(part + 0.46, down + row + 0.46, word, ha="center", va="center",
                    fontsize=7.5, color="white" if light else INK)  # fmt: skip


def _frame(ax, columns: float, rows: float) -> None:
    ax.set(xlim=(-0.4, columns + 0.1), ylim=(rows + 0.1, -0.7), aspect="equal")
    ax.axis("off")
