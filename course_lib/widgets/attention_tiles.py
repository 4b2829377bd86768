"""Attention tile by tile."""

import ipywidgets
import numpy as np

from course_lib.attention_tiles import SKIPPED, online, tile_kinds, visible
from course_lib.plots.attention_tiles import draw_step, online_steps, step_axes
from course_lib.plots.house import drawn
from course_lib.widgets.explorer import Explorer, slider

__all__ = ["attention_stepper"]


@drawn
def attention_stepper(n_q=10, n_k=14, block_m=4, block_n=4, *, seed=7):
    """One program of FlashAttention, tile by tile: where it is, and what one of its rows holds.

    Scores and values are drawn once; the sliders choose the row, the tile, and what is masked.
    """
    rng = np.random.default_rng(seed)
    drawn_scores, values = 1.2 * rng.normal(size=(n_q, n_k)), rng.normal(size=(n_k, 3))
    axes = step_axes()

    def state(query, done, causal, keys):
        """The row's scores as masked, its steps up to now, and how many tiles its program visits."""
        scores = np.where(visible(n_q, n_k, causal=causal, keys=keys), drawn_scores, -np.inf)
        kinds = tile_kinds(n_q, n_k, block_m, block_n, causal=causal, keys=keys)
        visited = int((kinds[query // block_m] != SKIPPED).sum())
        return scores, online(scores[query][: visited * block_n], values, block_n)[:done], visited

    def move(query, done, causal, keys):
        scores, steps, visited = state(query, done, causal, keys)
        step = steps[-1] if steps else None
        draw_step(axes, scores, values, query, step, visited, block_m, block_n, causal=causal, keys=keys)
        if visited == 0:
            return "Every tile is skipped: zeros are stored, and L = -inf."
        if step is None:
            return "Before the first tile: max -inf, sum 0, accumulator 0."
        return _step_words(step, len(steps), visited)

    def still():
        scores, steps, _ = state(n_q - 1, n_k, False, n_k - 1)
        return online_steps(scores[n_q - 1], steps, block_n)

    controls = {
        "query": slider("query", 0, n_q - 1, n_q // 2),
        "done": slider("tiles of keys done", 0, -(-n_k // block_n), 1),
        "causal": ipywidgets.Checkbox(True, description="causal"),
        "keys": slider("keys of this sequence", 0, n_k, n_k),
    }
    alt = (
        "One row of attention after each tile of keys: its scores with the running maximum above, and below the "
        "weights that the sums hold; when a tile brings a larger maximum, all earlier weights shrink by one factor."
    )
    return Explorer(axes[0], controls, move, still, alt)


def _step_words(step, done, visited) -> str:
    acc = ", ".join(f"{x:.2f}" for x in step.acc)
    if step.row_max == -np.inf:
        return f"Tile {done} of {visited}: this row has seen no key yet: max -inf, sum 0, accumulator 0."
    before = f", so what was summed before was multiplied by {step.factor:.2f}" if done > 1 else ""
    words = f"Tile {done} of {visited}: max {step.row_max:.2f}{before}; sum {step.row_sum:.2f}, accumulator ({acc})."
    if done == visited:
        output = ", ".join(f"{x:.2f}" for x in step.acc / step.row_sum)
        words += f" Done: o = ({output}), L = {step.row_max + np.log(step.row_sum):.2f}."
    return words
