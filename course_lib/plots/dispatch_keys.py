"""The path of a call through the dispatcher: one as a line from key to key, and several side by side."""

from graphlib import TopologicalSorter
from itertools import pairwise

from course_lib.plots.house import FAINT, GRID, INK, PALETTE, axes_or_new, drawn, finish

__all__ = ["call_path", "key_map"]

# How a key is marked, by what happens there; the words are those of torch_inside.call_path.
_MARKS = {
    "runs": {"marker": "o", "color": PALETTE[0], "markersize": 9},
    "lands": {"marker": "s", "color": PALETTE[1], "markersize": 10},
    "passes on": {"marker": "o", "color": FAINT, "markersize": 6, "markerfacecolor": "white"},
    "excluded": {"marker": "x", "color": PALETTE[3], "markersize": 7, "markeredgewidth": 1.8},
    "not reached": {"marker": ".", "color": FAINT, "markersize": 3},
    "missing": {"marker": "X", "color": INK, "markersize": 9},
}
_ON_THE_LINE = ("runs", "lands", "passes on", "missing")
_FULL = ("runs", "lands", "missing")  # set in ink; what does nothing is faint


@drawn
def call_path(path, ax=None, *, title=None, device=""):
    """From the highest key down to where the call ends. path: what `torch_inside.call_path` returns."""
    rows = list(path)
    ax = axes_or_new(ax, 9.2, 1.05 + 0.28 * len(rows))
    for x, head in zip(_COLUMNS, ("key", "brought by", "what happens there", "registered"), strict=True):
        ax.text(x, -0.95, head, va="center", fontsize=8.5, weight="bold")
    ax.axhline(-0.5, color=GRID, linewidth=0.8)
    line = [y for y, row in enumerate(rows) if row.state in _ON_THE_LINE]
    ax.plot([0] * len(line), line, color=PALETTE[0], linewidth=2.2, zorder=1, gid="path")
    for y, row in enumerate(rows):
        ax.plot(0 if row.state in _ON_THE_LINE else 1.6, y, linestyle="none", zorder=3, **_MARKS[row.state])
        ink = INK if row.state in _FULL else FAINT
        for x, words in zip(_COLUMNS, (row.key, row.brought_by, row.does or row.state), strict=False):
            ax.text(x, y, words, va="center", fontsize=8.5, color=ink)
        ax.text(_COLUMNS[3], y, row.registered, va="center", fontsize=8, color=FAINT)
    ax.set(xlim=(-2, 120), ylim=(len(rows) - 0.4, -1.4))
    ax.set_axis_off()
    return finish(ax, title or path.caption, device)


_COLUMNS = (4, 35, 51, 99)


@drawn
def key_map(paths, ax=None, *, order=(), title=None, device=""):
    """Keys from the highest to the lowest, one column a situation. paths: name -> a path of `torch_inside.call_path`.

    order: all keys, highest first; it decides between keys that no path has together.
    """
    order = _order([[_kind(row.key) for row in path] for path in paths.values()], [_kind(key) for key in order])
    ax = axes_or_new(ax, 3.4 + 0.42 * len(paths), 2.0 + 0.27 * len(order))
    for x, path in enumerate(paths.values()):
        at = [order.index(_kind(row.key)) for row in path]
        line = [y for y, row in zip(at, path, strict=True) if row.state in _ON_THE_LINE]
        ax.plot([x] * len(line), line, color=PALETTE[0], linewidth=1.2, zorder=1)
        for y, row in zip(at, path, strict=True):
            ax.plot(x + 0.22 * (row.state == "excluded"), y, linestyle="none", **_MARKS[row.state])
    ax.set(xlim=(-0.6, len(paths) - 0.4), ylim=(len(order) - 0.4, -0.6))
    ax.set_xticks(range(len(paths)), list(paths), rotation=40, ha="right", rotation_mode="anchor")
    names = {kind: {row.key for path in paths.values() for row in path if _kind(row.key) == kind} for kind in order}
    ax.set_yticks(range(len(order)), [", ".join(sorted(names[kind])) for kind in order])
    ax.tick_params(length=0)
    ax.grid(True)
    ax.spines[["left", "bottom"]].set_visible(False)
    seen = [state for state in _MARKS if any(row.state == state for path in paths.values() for row in path)]
    for state in seen:
        ax.plot([], [], linestyle="none", label=state, **_MARKS[state])
    ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=len(seen))
    return finish(ax, title or "What surrounds a call decides which kernels run", device)


def _kind(key: str) -> str:
    """Keys that differ by the device only share a line."""
    return next((kind for kind in ("Autograd", "Autocast") if key.startswith(kind)), key)


def _order(lists, known) -> list:
    """One order that agrees with all of them."""
    above = {key: set() for keys in lists for key in keys}
    for keys in [*lists, [key for key in dict.fromkeys(known) if key in above]]:
        for high, low in pairwise(keys):
            above[low].add(high)
    return list(TopologicalSorter(above).static_order())
