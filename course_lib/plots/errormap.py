"""Where an answer is wrong: the error of every element, in limits, as a picture."""

import math

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from course_lib.plots.house import FAINT, axes_or_new, drawn, finish

__all__ = ["error_map"]

# Within the limit pale blues, beyond it orange to dark brown; lightness falls all the way, so grey print reads too.
_COLOURS = ("#FFFFFF", "#E3EDF5", "#BFD6E8", "#F0A050", "#C24E18", "#5E1508")
_BOUNDS = (0, 0.1, 0.5, 1, 10, 100, 1000)
_UNWRITTEN = "#444444"
_CELLS = 128  # most rows and columns that are drawn
_WIDTH = 64  # elements a row of a one-dimensional tensor


@drawn
def error_map(got, want, limit, ax=None, *, title=None, device=""):
    """|got - want| / limit for each element, as rows (leading dimensions flattened) and columns.

    limit: a number or a tensor like `want`. A one-dimensional tensor is cut into rows of 64. Where there are more
    than two dimensions, ticks and lines stand where a new matrix begins: a head, a sequence. Of a large tensor each
    cell shows its worst element, never an average. NaN where `want` has none is hatched.
    """
    over, unwritten = _in_limits(_array(got), _array(want), _array(limit))
    a_matrix = over.shape[-2] if over.ndim > 2 else 0
    over, unwritten, rows_are, columns_are = _as_picture(over, unwritten)
    ax = axes_or_new(ax, 6.4, 3.6)
    ax.set(xlabel=columns_are, ylabel=rows_are)
    if over.size == 0:
        return finish(ax, title or "No elements", device)
    (rows, columns), block = over.shape, [-(-n // _CELLS) for n in over.shape]
    cells, holes = _pooled(over, block), _pooled(unwritten.astype(float), block) > 0
    _draw_cells(ax, cells, holes, block, rows, columns)
    if a_matrix > 1:
        _part_matrices(ax, rows, a_matrix)
    notes = ["hatched: NaN"] if holes.any() else []
    if block != [1, 1]:
        notes.append(f"each cell is the worst of {block[0]} x {block[1]} elements")
    return finish(ax, title or _message(over, unwritten), device, "; ".join(notes))


def _array(x) -> np.ndarray:
    if hasattr(x, "detach"):
        x = x.detach().cpu().double()
    return np.asarray(x, dtype=np.float64)


def _in_limits(got, want, limit):
    """Error over limit (infinite where it cannot be told) and where nothing was written."""
    with np.errstate(all="ignore"):
        equal = (got == want) | (np.isnan(got) & np.isnan(want))
        over = np.where(equal, 0.0, np.abs(got - want) / limit)
    unwritten = np.isnan(got) & ~np.isnan(want)
    return np.where(np.isnan(over), np.inf, over), unwritten


def _as_picture(over, unwritten):
    """Two dimensions, and what they are called. Elements that fill up the last row are NaN."""
    if over.ndim >= 2:
        shape = (math.prod(over.shape[:-1]), over.shape[-1])
        rows_are = "row" if over.ndim == 2 else "row, one matrix below the other"
        return over.reshape(shape), unwritten.reshape(shape), rows_are, "column"
    n, width = over.size, max(1, min(_WIDTH, over.size))
    missing = -n % width
    over = np.append(over.ravel(), [np.nan] * missing).reshape(-1, width)
    unwritten = np.append(unwritten.ravel(), np.zeros(missing, bool)).reshape(-1, width)
    return over, unwritten, f"row of {width} elements", "column"


def _pooled(values, block):
    """Largest value of each block; NaN (no element) only where a whole block has none."""
    padding = [(0, -n % b) for n, b in zip(values.shape, block)]
    filled = np.pad(np.where(np.isnan(values), -1.0, values), padding, constant_values=-1.0)
    rows, columns = (n // b for n, b in zip(filled.shape, block))
    worst = filled.reshape(rows, block[0], columns, block[1]).max(axis=(1, 3))
    return np.where(worst < 0, np.nan, worst)


def _draw_cells(ax, cells, holes, block, rows, columns):
    height, width = cells.shape[0] * block[0], cells.shape[1] * block[1]
    picture = ax.imshow(
        np.ma.masked_invalid(np.where(np.isinf(cells), 999.0, np.minimum(cells, 999.0))),
        cmap=ListedColormap(_COLOURS),
        norm=BoundaryNorm(_BOUNDS, len(_COLOURS)),
        extent=(-0.5, width - 0.5, height - 0.5, -0.5),
        aspect="auto",
        interpolation="nearest",
    )
    for y, x, tall, wide in _rectangles(holes):
        corner = (x * block[1] - 0.5, y * block[0] - 0.5)
        ax.add_patch(Rectangle(corner, wide * block[1], tall * block[0], facecolor=_UNWRITTEN, edgecolor="white",
                               hatch="////", linewidth=0))  # fmt: skip
    # the last cell may reach beyond the last element
    ax.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    ax.spines[["top", "right"]].set_visible(True)
    bar = ax.figure.colorbar(picture, ax=ax, ticks=_BOUNDS[1:-1], pad=0.02, spacing="uniform")
    bar.ax.set_yticklabels(["0.1", "0.5", "limit", "10 x", "100 x"], fontsize=8)
    bar.set_label("|error|", fontsize=8.5)


def _part_matrices(ax, rows, a_matrix):
    """Ticks and thin lines where a new matrix of the flattened ones begins; of many, at every second or third."""
    begins = np.arange(0, rows, a_matrix * -(-rows // (8 * a_matrix)))
    ax.set_yticks(begins)
    ax.hlines(begins[1:] - 0.5, *ax.get_xlim(), color=FAINT, linewidth=0.6)


def _rectangles(mask):
    """Cover a mask with few rectangles (y, x, height, width): equal runs of neighbouring rows are joined."""
    open_runs: dict[tuple[int, int], int] = {}
    for y in range(len(mask) + 1):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], mask[y].astype(int), [0]]))) if y < len(mask) else []
        runs = {(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2])}
        for run in [run for run in open_runs if run not in runs]:
            top = open_runs.pop(run)
            yield top, run[0], y - top, run[1] - run[0]
        for run in runs:
            open_runs.setdefault(run, y)


def _message(over, unwritten) -> str:
    there = ~np.isnan(over)
    elements, wrong = int(there.sum()), int((over[there] > 1).sum())
    of = f"{elements:,} element{'s' * (elements != 1)}"
    if wrong == 0:
        return f"{of} within the limit, the worst at {over[there].max():.2g} of it"
    missing, others = int(unwritten.sum()), over[there & ~unwritten]
    message = f"{wrong:,} of {of} wrong"
    if missing:
        message += f", {missing:,} of them NaN"
    if others.size and 1 < others.max() < np.inf:
        message += f"; the worst {'of the others ' if missing else ''}at {_times(others.max())} the limit"
    return message


def _times(factor: float) -> str:
    if factor >= 1e6:
        return "more than a million times"
    return f"{factor:.3g} times" if factor < 1000 else f"{factor:,.0f} times"
