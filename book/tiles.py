"""Pictures of how kernels cut their work, drawn from the kernels' own tables and functions."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path

from matplotlib.patches import Rectangle

from book.markup import container
from course_lib import device  # noqa: F401 (it chooses how Triton runs, so it comes before the kernels)
from course_lib.kernels import pointwise, product_tiles
from course_lib.kernels.attention import tuning
from course_lib.plots import attention_tiles, groups, programs
from course_lib.plots.house import FAINT, INK, PALETTE, drawn, figure, finish, png

__all__ = ["PICTURES", "pictured"]

TOGETHER = 24  # programs that run at the same time, in the small picture of a product


def pictured(family: str, out: Path) -> str:
    """Writes the picture of a family of kernels and says it in Markdown; nothing for a family without one."""
    if family not in PICTURES:
        return ""
    draw, alt = PICTURES[family]
    (out / "pictures").mkdir(exist_ok=True)
    (out / "pictures" / f"tiles-{family}.png").write_bytes(png(draw()))
    return container("plot", f"```{{image}} /pictures/tiles-{family}.png\n:alt: {alt}\n```")


def position(tile: int, tall: int, wide: int, group: int) -> tuple[int, int]:
    """What the kernels' `tile_position` says for tiles of size 1; outside a kernel Triton's own division is missing."""
    code = product_tiles.tile_position.fn.__code__
    division = types.SimpleNamespace(cdiv=lambda a, b: -(-a // b))
    alone = types.FunctionType(code, {"tl": division, "min": min})
    return alone(tile, tall, wide, 1, 1, group)


@drawn
def product():
    """The first tiles in row order and in groups, and what of a and b they touch."""
    tall, wide = 12, 16
    made, several = figure(8.6, 3.6, columns=2)
    for ax, group in zip(several, (1, product_tiles.GROUP_M)):
        at = [position(tile, tall, wide, group) for tile in range(TOGETHER)]
        for m in range(tall):
            for n in range(wide):
                ax.add_patch(Rectangle((n, m), 1, 1, facecolor="white", edgecolor=FAINT, linewidth=0.4))
        for turn, (m, n) in enumerate(at):
            ax.add_patch(Rectangle((n, m), 1, 1, facecolor="#BFD6E8", edgecolor=PALETTE[0], linewidth=0.8))
            ax.text(n + 0.5, m + 0.55, str(turn), ha="center", va="center", fontsize=7, color=INK)
        rows, columns = {m for m, _ in at}, {n for _, n in at}
        for m in rows:
            ax.add_patch(Rectangle((-1.6, m), 1, 1, facecolor="#FBE3C8", edgecolor=PALETTE[1], linewidth=0.8))
        for n in columns:
            ax.add_patch(Rectangle((n, -1.6), 1, 1, facecolor="#FBE3C8", edgecolor=PALETTE[1], linewidth=0.8))
        ax.set(xlim=(-1.8, wide + 0.2), ylim=(tall + 0.2, -1.8), aspect="equal")
        ax.set_axis_off()
        words = "row by row" if group == 1 else f"in groups of {group} rows"
        finish(ax, f"{words}: {TOGETHER} tiles need {len(rows)} rows of a and {len(columns)} columns of b")
    return made


def attention():
    blocks = tuning.TABLE[64, True].forward
    return attention_tiles.block_map(448, 512, blocks.m, blocks.n, causal=True, walk="rows")


def elements():
    block = pointwise._AXPY[0]
    return programs.grid(3 * block + block // 3, block)


def scales():
    return groups.group_tiles(476, 32, block_m=16, block_k=4, per_thread=8)


PRODUCT_ALT = (
    "A table of tiles twice: in row order the first tiles touch two rows of a and every column of b, in groups they "
    "touch eight rows and three columns."
)
PICTURES: dict[str, tuple[Callable, str]] = {
    "pointwise": (elements, "An array cut into programs, one a line; the last one's lanes past the end are hatched."),
    "matmul": (product, PRODUCT_ALT),
    "linear_gelu": (product, PRODUCT_ALT),
    "product_tiles": (product, PRODUCT_ALT),
    "attention": (
        attention,
        "The causal score matrix in tiles: numbers are the order in which a program visits keys; tiles on the diagonal "
        "need the mask, those above it are skipped.",
    ),
    "mx": (scales, "A row of numbers in groups that share a scale, cut into tiles, and the block of one program."),
}
