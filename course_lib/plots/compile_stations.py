"""The stations of torch.compile as a picture, with a function under way."""

import textwrap

from matplotlib.patches import FancyBboxPatch

from course_lib.plots.house import FAINT, INK, PALETTE, axes_or_new, drawn, finish

__all__ = ["pipeline"]

_LINE, _HEAD, _GAP = 1.0, 1.5, 1.7  # heights, in lines of text
_WIDE, _MOST = 100.0, 9  # the width of the picture; lines of code shown in a box
_TINTS = ("#F2F2F2", "#D6E6F2", "#FBE3D4", "#D5EFE5", "#F2F2F2")


@drawn
def pipeline(flow, ax=None, *, title=None, device=""):
    """From Python down to kernels. flow: what `torch_inside.flow` returns."""
    rows = _rows(flow)
    heights = [_HEAD + _LINE * max(len(lines) for _, _, _, lines in row) + 0.5 for row in rows]
    total = sum(heights) + _GAP * (len(rows) - 1)
    ax = axes_or_new(ax, 7.8, 0.6 + 0.152 * total)
    top, arrows = 0.0, _arrows(flow)
    for i, (row, height) in enumerate(zip(rows, heights, strict=True)):
        for left, width, head, lines in row:
            _box(ax, left, top, width, height, head, lines, _TINTS[i])
        if i == 2:
            _cut(ax, row, top, height, flow)
        if i < len(rows) - 1:
            for left, width, words in arrows[i]:
                _down(ax, left + width / 2, top + height, words)
        top += height + _GAP
    ax.set(xlim=(-0.5, _WIDE + 0.5), ylim=(total + 0.4, -0.4))
    ax.set_axis_off()
    operators = sum(_count(kind) for kind in flow.forward)
    made = len(flow.forward_kernels)
    return finish(ax, title or f"{operators} operators of the forward pass become {made} calls", device)


def _rows(flow):
    """One list a station of (left, width, head, lines)."""
    half, gap = 49.0, 2.0
    right = half + gap
    again = f", {flow.again} of them again" if flow.again else ""
    return [
        [(0, _WIDE, "Python", _code(flow.source, 100))],
        [
            (0, half, f"Dynamo: the graph{_took(flow, 'Dynamo')}", _code(flow.graph, 47)),
            (right, half, f"Dynamo: {len(flow.guards)} guards on what you passed", _words(flow.guards, 47)),
        ],
        [
            (0, 42.0, f"AOTAutograd: forward{_took(flow, 'AOTAutograd')}", _list(flow.forward, 40)),
            (58.0, 42.0, f"backward{again}", _list(flow.backward, 40)),
        ],
        [
            (0, half, f"Inductor: forward{_took(flow, 'Inductor')}", _code(flow.forward_kernels, 47)),
            (right, half, "Inductor: backward", _code(flow.backward_kernels, 47)),
        ],
        [(0, _WIDE, f"{flow.language}{_took(flow, flow.language)}: from the forward kernel", _ends(flow.code, 100))],
    ]


def _arrows(flow):
    """Below each station but the last: (left, width, words)."""
    half = 49.0
    return [
        [(0, half, f"{flow.instructions} instructions of bytecode"), (51, half, "the arguments of this call")],
        [(0, 42.0, "")],
        [(0, 42.0, ""), (58, 42.0, "")],
        [(0, 42.0, "")],
    ]


def _box(ax, left, top, width, height, head, lines, tint):
    shape = FancyBboxPatch((left, top), width, height, boxstyle="round,pad=0,rounding_size=0.6", facecolor=tint,
                           edgecolor=FAINT, linewidth=0.8, mutation_aspect=0.4)  # fmt: skip
    ax.add_patch(shape)
    ax.text(left + 1.2, top + 0.35, head, va="top", fontsize=8.5, weight="bold", color=INK)
    for n, line in enumerate(lines):
        ax.text(left + 1.2, top + _HEAD + n * _LINE, line, va="top", fontsize=7.4, family="DejaVu Sans Mono")


def _down(ax, x, y, words):
    ax.annotate("", (x, y + _GAP), (x, y), arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 1.2})
    ax.text(x + 1, y + _GAP / 2, words, va="center", fontsize=8, color=INK)


def _cut(ax, row, top, height, flow):
    """What crosses from forward to backward."""
    (left, width, _, _), (right, _, _, _) = row
    middle = top + height / 2
    ax.annotate("", (right, middle), (left + width, middle),
                arrowprops={"arrowstyle": "-|>", "color": PALETTE[1], "linewidth": 2})  # fmt: skip
    words = ["kept:", *(flow.saved or ("nothing new",))]
    ax.text((left + width + right) / 2, middle - 0.3, "\n".join(words), ha="center", va="bottom", fontsize=8)


def _took(flow, station):
    return f" ({flow.seconds[station]:.2f} s)" if flow.seconds.get(station) else ""


def _code(lines, width):
    """Lines as they are, cut at the right and after some lines."""
    cut = [line if len(line) <= width else line[: width - 3] + "..." for line in lines]
    return cut if len(cut) <= _MOST else [*cut[: _MOST - 1], f"... {len(cut) - _MOST + 1} more"]


def _ends(lines, width):
    """The first lines and the last ones: loads, some arithmetic, and the store."""
    kept = lines if len(lines) <= _MOST else (*lines[: _MOST - 3], f"... {len(lines) - _MOST + 1} more", *lines[-2:])
    return _code(kept, width)


def _words(lines, width):
    wrapped = [part for line in lines for part in textwrap.wrap(line, width, subsequent_indent="  ")]
    return _code(wrapped, width)


def _list(kinds, width):
    return _code(textwrap.wrap(", ".join(kind.replace(" ", "\u00a0") for kind in kinds), width), width)


def _count(kind: str) -> int:
    """ "mul ×3" -> 3, "mm" -> 1."""
    number = kind.rpartition("×")[2]
    return int(number) if number.isdigit() else 1
