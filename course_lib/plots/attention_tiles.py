"""Attention in tiles, drawn: which tiles are computed and in which order, and the online softmax of one row."""

import numpy as np
from matplotlib.patches import Patch, Rectangle

from course_lib.attention_tiles import EDGE, SKIPPED, WHOLE, Step, tile_kinds, visible
from course_lib.plots.house import FAINT, INK, PALETTE, axes_or_new, drawn, figure, finish

__all__ = ["block_map", "draw_step", "online_steps", "step_axes"]

_LOOKS = {
    WHOLE: {"facecolor": "#BFD6E8", "edgecolor": PALETTE[0], "linewidth": 1.0},
    EDGE: {"facecolor": "#FBE3C8", "edgecolor": PALETTE[1], "linewidth": 1.6},
    SKIPPED: {"facecolor": "white", "edgecolor": "#BBBBBB", "linewidth": 0.6, "linestyle": ":"},
}
_WORDS = {WHOLE: "whole: no mask needed", EDGE: "edge: needs the mask", SKIPPED: "skipped: never loaded"}
_OUTSIDE = {"facecolor": "none", "edgecolor": FAINT, "hatch": "////", "linewidth": 0}
_DOT = 28  # largest side whose single pairs are drawn


@drawn
def block_map(
    n_q, n_k, block_m, block_n, *, causal=False, keys=None, walk=None, ax=None, title=None, legend=True
):  # fmt: skip
    """The score matrix cut into tiles of block_m queries and block_n keys: whole, on an edge, or skipped.

    walk: "rows" numbers the tiles of each row in the order in which a program that owns queries visits them,
    "columns" those of each column for a program that owns keys. A dot is a pair that counts; hatched is past the end.
    """
    if walk not in (None, "rows", "columns"):
        raise ValueError(f'walk is "rows", "columns" or None, not {walk!r}')
    kinds = tile_kinds(n_q, n_k, block_m, block_n, causal=causal, keys=keys)
    tall, wide = kinds.shape[0] * block_m, kinds.shape[1] * block_n
    ax = axes_or_new(ax, 4.6 + 2.2 * legend, 3.9)
    for (i, j), kind in np.ndenumerate(kinds):
        corner = (j * block_n, i * block_m)
        ax.add_patch(Rectangle(corner, block_n, block_m, zorder={SKIPPED: 1, WHOLE: 2, EDGE: 3}[kind], **_LOOKS[kind]))
    if max(n_q, n_k) <= _DOT:
        m, n = np.nonzero(visible(n_q, n_k, causal=causal, keys=keys))
        ax.plot(n + 0.5, m + 0.5, ".", color=INK, markersize=2.2, zorder=4)
    for x, y, width, height in ((n_k, 0, wide - n_k, tall), (0, n_q, n_k, tall - n_q)):
        if width and height:
            ax.add_patch(Rectangle((x, y), width, height, zorder=5, **_OUTSIDE))
    if walk:
        _number(ax, kinds, block_m, block_n, walk)
    _frame(ax, n_q, n_k, tall, wide, block_m, block_n)
    if legend:
        there = [kind for kind in (WHOLE, EDGE, SKIPPED) if (kinds == kind).any()]
        handles = [Patch(**_LOOKS[kind], label=_WORDS[kind]) for kind in there]
        ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0)
    return finish(ax, title or _message(kinds))


def _number(ax, kinds, block_m, block_n, walk) -> None:
    """1, 2, 3 ... in the tiles that one program visits."""
    for line in range(kinds.shape[0] if walk == "rows" else kinds.shape[1]):
        along = kinds[line] if walk == "rows" else kinds[:, line]
        for turn, step in enumerate(np.flatnonzero(along != SKIPPED), 1):
            i, j = (line, step) if walk == "rows" else (step, line)
            ax.text((j + 0.5) * block_n, (i + 0.5) * block_m, str(turn), ha="center", va="center", fontsize=9,
                    zorder=6, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85})  # fmt: skip


def _frame(ax, n_q, n_k, tall, wide, block_m, block_n) -> None:
    ax.set(xlim=(-0.02 * wide, 1.02 * wide), ylim=(1.02 * tall, -0.02 * tall), aspect="equal")
    ax.set(xlabel=f"keys (n_k = {n_k})", ylabel=f"queries (n_q = {n_q})")
    ax.set_xticks(range(0, wide + 1, block_n))
    ax.set_yticks(range(0, tall + 1, block_m))
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)


def _message(kinds) -> str:
    counts = {kind: int((kinds == kind).sum()) for kind in (EDGE, SKIPPED)}
    parts = [f"{counts[EDGE]} need{'s' * (counts[EDGE] == 1)} the mask"] if counts[EDGE] else []
    parts += [f"{counts[SKIPPED]} {'is' if counts[SKIPPED] == 1 else 'are'} skipped"] if counts[SKIPPED] else []
    return f"Of {kinds.size} tiles {' and '.join(parts) or 'none needs a mask'}"


def _draw_scores(ax, scores, step: Step | None, block: int) -> None:
    """The scores of one row as dots, those that have been seen filled, and the running maximum as a line."""
    end = step.end if step else 0
    at, hidden = np.arange(len(scores)) + 0.5, ~np.isfinite(scores)
    finite = np.where(hidden, np.nan, scores)
    ax.plot(at[:end], finite[:end], "o", color=PALETTE[0], markersize=4.5)
    ax.plot(at[end:], finite[end:], "o", color=FAINT, markersize=4.5, fillstyle="none")
    low = -1 if hidden.all() else np.nanmin(finite)
    high = 1 if hidden.all() else np.nanmax(finite)
    floor = low - 0.25 * (high - low + 1)
    ax.plot(at[hidden], np.full(hidden.sum(), floor), "v", color=FAINT, markersize=4)
    if step and np.isfinite(step.row_max):
        ax.plot([0, end], [step.row_max] * 2, color=PALETTE[1], linewidth=1.6)
    _keys_axis(ax, len(scores), block)
    ax.set(ylim=(floor - 0.15 * (high - floor), high + 0.2 * (high - floor)))


def _draw_weights(ax, step: Step | None, n_k: int, block: int) -> None:
    """exp(score - running maximum) of every key so far; the newest tile is hatched."""
    if step:
        last = (step.end - 1) // block * block
        at = np.arange(step.end) + 0.5
        ax.bar(at[:last], step.weights[:last], width=0.8, color=PALETTE[5], edgecolor=PALETTE[0], linewidth=0.6)
        ax.bar(at[last:], step.weights[last:], width=0.8, color="#FBE3C8", edgecolor=PALETTE[1], linewidth=0.6,
               hatch="////")  # fmt: skip
    _keys_axis(ax, n_k, block)
    ax.set_ylim(0, 1.12)


def _keys_axis(ax, n_k, block) -> None:
    for edge in range(block, n_k, block):
        ax.axvline(edge, color="#CCCCCC", linewidth=0.8, zorder=0)
    ax.set_xlim(0, n_k)
    ax.set_xticks(range(0, n_k + 1, block))


def _draw_acc(ax, step: Step | None, size: int) -> None:
    """The accumulator as bars, and divided by the sum, which is the output so far, as diamonds."""
    ax.axhline(0, color=FAINT, linewidth=0.8)
    if step:
        ax.bar(range(size), step.acc, width=0.5, color=PALETTE[5], edgecolor=PALETTE[0], linewidth=0.6)
        ax.plot(range(size), step.acc / (step.row_sum or 1.0), "D", color=INK, markersize=5)
    ax.set_xlim(-0.6, size - 0.4)
    ax.set_xticks(range(size))


@drawn
def step_axes():
    """A figure for `draw_step`: Axes of the block map, the scores, the weights and the accumulator."""
    made, axes = figure(7.8, 4.6, rows=3, columns=2)
    grid = axes[0, 0].get_gridspec()
    grid.set_width_ratios((1.15, 1))
    for ax in axes[:, 0]:
        ax.remove()
    wide = made.add_subplot(grid[:, 0])
    wide.tick_params(labelsize=8.5, color=FAINT, labelcolor=INK)
    return wide, *axes[:, 1]


@drawn
def draw_step(axes, scores, values, query, step, visited, block_m, block_n, *, causal, keys) -> None:
    """Where one program is: `step` is what row `query` holds (None before the first tile), `visited` its tiles.

    scores: (n_q, n_k), -inf where masked.
    """
    chart, above, middle, below = axes
    for ax in axes:
        ax.clear()
    (n_q, n_k), first_m = scores.shape, query // block_m * block_m
    block_map(n_q, n_k, block_m, block_n, causal=causal, keys=keys, ax=chart, title=" ", legend=False)
    done = -(-step.end // block_n) if step else 0
    if done:
        here = Rectangle(((done - 1) * block_n, first_m), block_n, block_m, facecolor="none", edgecolor=INK, zorder=7)
        here.set(linewidth=2.6, gid="here")
        chart.add_patch(here)
    chart.plot([0, done * block_n], [query + 0.5] * 2, color=INK, linewidth=1, zorder=6)
    chart.plot([done * block_n], [query + 0.5], ">", color=INK, markersize=7, gid="head", zorder=7)
    finish(chart, f"Query {query} after {done} of {visited} tiles")
    _draw_scores(above, scores[query], step, block_n)
    _draw_weights(middle, step, n_k, block_n)
    _draw_acc(below, step, values.shape[1])
    for ax, words in ((above, "scores, running maximum"), (middle, "weights: exp(score - maximum)"),
                      (below, "accumulator; diamonds: divided by the sum")):  # fmt: skip
        ax.set_title(words, fontsize=9, loc="left")
    below.set_ylim(*_reach(values))
    below.set_xlabel("column of v")


def _reach(values) -> tuple[float, float]:
    """Limits that hold for every step: weights are at most 1 each, and few are near it."""
    most = 2.2 * np.abs(values).max()
    return -most, most


@drawn
def online_steps(scores, steps, block, *, title=None):
    """The state of one row after every tile: above the scores and the running maximum, below the weights so far.

    Returns the first of the Axes; triangles at the bottom are masked keys.
    """
    made, axes = figure(7.6, 3.6, rows=2, columns=len(steps))
    axes = axes.reshape(2, len(steps))
    for i, step in enumerate(steps):
        _draw_scores(axes[0, i], scores, step, block)
        _draw_weights(axes[1, i], step, len(scores), block)
        axes[0, i].set_title(f"tile {i + 1}\nmax {step.row_max:.2f}, factor {step.factor:.2f}", fontsize=9, loc="left")
        axes[1, i].set_title(f"sum {step.row_sum:.2f}", fontsize=9, loc="left")
        axes[1, i].set_xlabel("key")
        if i:
            for ax in axes[:, i]:
                ax.set_yticklabels([])
    axes[0, 0].set_ylabel("score")
    axes[1, 0].set_ylabel("weight")
    made.suptitle(title or _rises(steps), x=0.01, ha="left", fontsize=11, fontweight="bold")
    return axes[0, 0]


def _rises(steps) -> str:
    rises = sum(step.factor < 1 for step in steps[1:])
    times = {1: "once", 2: "twice"}.get(rises, f"{rises} times")
    return f"The maximum rises {times}, and all earlier weights shrink by one factor" if rises else (
        "The maximum stays, and no earlier weight changes"
    )  # fmt: skip
