"""Memory over time, drawn: the bytes of each owner, operator by operator, through forward and backward."""

import numpy as np

from course_lib.plots.house import GRID, HATCHES, INK, PALETTE, axes_or_new, drawn, finish, percent

__all__ = ["memory_by_owner", "scale_of"]

MOST = 6  # owners with an area of their own; the rest is one
REST = "all else"


def stacks(ledger, most: int = MOST) -> dict[str, np.ndarray]:
    """Owner -> bytes after each operator, from the lowest stack to the highest.

    Owners stand in the order in which they first held memory; memory "in passing" is on top. The `most` owners with the
    highest peaks have a stack each, and all others share one.
    """
    each: dict[str, np.ndarray] = {}
    for moment in range(len(ledger.moments)):
        for owner, size in ledger.owners_at(moment).items():
            each.setdefault(owner, np.zeros(len(ledger.moments)))[moment] = size
    order = sorted(each, key=lambda owner: (-each[owner].max(), owner))
    largest = sorted(order[:most], key=lambda owner: (owner == ledger.PASSING, int(np.argmax(each[owner] > 0))))
    shown = {owner: each[owner] for owner in largest}
    if len(order) > most:
        shown[REST] = sum(each[owner] for owner in order[most:])
    return shown


def scale_of(count: float) -> tuple[int, str]:
    """(bytes of the unit, its name) for an axis that ends at so many bytes."""
    return (2**30, "GiB") if count >= 2**31 else (2**20, "MiB")


@drawn
def memory_by_owner(ledger, ax=None, *, title=None, device="", limit=None, looks=(), operators=None, words=None):
    """A `memory.Ledger` as stacked areas: one step an operator, a line between forward and backward, the peak marked.

    limit: the end of the memory axis in bytes. operators: the length of the other axis. looks: owners in the order of
    their colours, so that an owner has the same colour in several figures. words: owner -> what the legend calls it.
    """
    ax = axes_or_new(ax, 7.4, 4.2)
    if not ledger.moments:
        return finish(ax, title or "Nothing ran", device)
    scale, unit = scale_of(limit or ledger.peak_bytes)
    edges = np.arange(len(ledger.moments) + 1)
    below = np.zeros(len(ledger.moments))
    shown = stacks(ledger)
    looks = [*looks, *(owner for owner in shown if owner not in looks)]
    for owner, sizes in shown.items():
        i, above = looks.index(owner) % 7, below + sizes / scale
        color, hatch = (GRID, "") if owner == REST else (PALETTE[i], HATCHES[i])
        ax.fill_between(edges, np.append(below, below[-1]), np.append(above, above[-1]), step="post",
                        label=(words or {}).get(owner, owner),
                        facecolor=color, hatch=hatch, edgecolor="white", linewidth=0.5)  # fmt: skip
        below = above
    at, peak = ledger.peak_at, ledger.peak_bytes / scale
    ax.plot(at + 0.5, peak, marker="v", color=INK, markersize=6, zorder=5)
    side = "left" if at >= ledger.forward else "right" if at > ledger.forward / 2 else "center"  # clear of the line
    ax.annotate(f"{peak:.4g} {unit}: {ledger.moments[at]}", (at + 0.5, peak), xytext=(0, 8),
                textcoords="offset points", ha=side, fontsize=8.5)  # fmt: skip
    ax.axvline(ledger.forward, color=INK, linewidth=1)
    top = (limit or ledger.peak_bytes) / scale * 1.18
    for x, word, side in ((ledger.forward, "forward ", "right"), (ledger.forward, " backward", "left")):
        ax.text(x, top, word, ha=side, va="top", fontsize=8.5)
    ax.set(
        xlim=(0, operators or len(ledger.moments)),
        ylim=(0, top),
        xlabel="operators, in order",
        ylabel=f"memory held ({unit})",
    )
    ax.grid(True, axis="y")
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    held = ledger.held_bytes / ledger.peak_bytes if ledger.peak_bytes else 0
    return finish(ax, title or f"{percent(held)} of the peak is held from forward to backward", device)
