"""Groups that share a scale, cut into tiles: as a table of groups, and as the block that one Triton program holds."""

import numpy as np
from matplotlib.patches import Patch, Rectangle

from course_lib.plots.house import FAINT, INK, PALETTE, drawn, figure

__all__ = ["group_tiles"]

_TILE = {"facecolor": "#BFD6E8", "edgecolor": PALETTE[0], "linewidth": 1.4}
_SCALE = {"facecolor": "#FBE3C8", "edgecolor": PALETTE[1], "linewidth": 1.4}
_PLAIN = {"facecolor": "white", "edgecolor": FAINT, "linewidth": 0.5}
_OUTSIDE = {"facecolor": "white", "edgecolor": FAINT, "linewidth": 0.5, "hatch": "////"}
_TINTS = ("#D6E6F2", "#F3F8FC")  # neighbouring threads


@drawn
def group_tiles(columns, group, block_m, block_k, per_thread, *, title=None):
    """A row of `columns` numbers in groups, two views; returns the Figure.

    Left the table (place in the group, number of the group), cut into tiles of block_m places of block_k groups, with
    the scales above. Right one program's block, its last block_k groups, with per_thread adjacent elements a thread.
    Hatched: past the end of the row, so predicated off.
    """
    made, (left, right) = figure(9.6, 4.4, columns=2)
    made.suptitle(title or _message(columns, group, block_m, block_k), x=0.01, ha="left", weight="bold")
    groups = -(-columns // group)
    tiles = -(-groups // block_k)
    _table(left, columns, group, groups, tiles, block_m, block_k)
    _block(right, columns, group, (tiles - 1) * block_k, block_k, per_thread)
    looks = {"one tile": _TILE, "its scales": _SCALE, "past the end": _OUTSIDE}
    handles = [Patch(**look, label=name) for name, look in looks.items()]
    made.legend(handles=handles, loc="outside lower center", ncols=3)
    return made


def _message(columns, group, block_m, block_k) -> str:
    return f"{columns} numbers in groups of {group}: a tile of {block_m} by {block_k} needs {block_k} scales"


def _table(ax, columns, group, groups, tiles, block_m, block_k) -> None:
    """Every group is a column, and the tile in the middle is set off."""
    chosen = tiles // 2
    for k in range(tiles * block_k):
        mine = k // block_k == chosen
        there = k < groups
        ax.add_patch(Rectangle((k, -3.2), 1, 2, **(_SCALE if mine else _PLAIN if there else _OUTSIDE)))
        valid = int(np.clip(columns - k * group, 0, group))
        ax.add_patch(Rectangle((k, 0), 1, valid, **_PLAIN))
        if valid < group:
            ax.add_patch(Rectangle((k, valid), 1, group - valid, **_OUTSIDE))
    for k in range(tiles):
        for m in range(0, group, block_m):
            ax.add_patch(Rectangle((k * block_k, m), block_k, block_m, facecolor="none", edgecolor=INK, linewidth=1.2))
    ax.add_patch(Rectangle((chosen * block_k, 0), block_k, block_m, alpha=0.75, **_TILE))
    ax.text(-0.3, -2.2, "scales", ha="right", va="center", fontsize=8.5)
    ax.set(xlim=(-0.2, tiles * block_k + 0.2), ylim=(group + 0.5, -3.8))
    ax.set(xlabel="number of the group", ylabel="place in the group")
    ax.set_xticks(range(0, tiles * block_k + 1, block_k))
    ax.set_yticks(range(0, group + 1, block_m))
    ax.set_title("a row of numbers as a table of groups", fontsize=9.5)
    _bare(ax)


def _block(ax, columns, group, first, block_k, per_thread) -> None:
    """One row a group; a box is what one thread holds, with its number and the coordinates of its first element."""
    across = group // per_thread
    for row in range(block_k):
        there = first + row < -(-columns // group)
        ax.add_patch(Rectangle((-4.2, row + 0.08), 3, 0.84, **(_SCALE if there else _OUTSIDE)))
        for piece in range(across):
            thread, start = row * across + piece, (first + row) * group + piece * per_thread
            valid = int(np.clip(columns - start, 0, per_thread))
            x, tint = piece * per_thread, _TINTS[(row + piece) % 2]
            ax.add_patch(Rectangle((x, row), per_thread, 1, facecolor=tint, edgecolor=PALETTE[0], linewidth=0.8))
            if valid < per_thread:
                ax.add_patch(Rectangle((x + valid, row), per_thread - valid, 1, **_OUTSIDE))
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.9}
            ax.text(
                x + per_thread / 2, row + 0.36, f"thread {thread}", ha="center", va="center", fontsize=7.5, bbox=box
            )
            ax.text(x + per_thread / 2, row + 0.7, f"({first + row}, {piece * per_thread})", ha="center", va="center",
                    fontsize=7.5, color=FAINT, bbox=box)  # fmt: skip
    ax.set(xlim=(-4.6, group + 0.2), ylim=(block_k + 0.1, -0.1))
    ax.set(xlabel="place in the group", ylabel="number of the group")
    ax.set_xticks(range(0, group + 1, per_thread))
    ax.set_yticks([row + 0.5 for row in range(block_k)], range(first, first + block_k))
    ax.set_title("the block of one program: the last groups", fontsize=9.5)
    _bare(ax)


def _bare(ax) -> None:
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)
