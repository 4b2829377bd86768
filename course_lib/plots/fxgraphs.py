"""FX graphs side by side: nodes from top to bottom, an arrow for every use."""

from itertools import pairwise

from matplotlib.patches import FancyBboxPatch

from course_lib.plots.house import FAINT, INK, PALETTE, drawn, figure

__all__ = ["graphs"]

_TINTS = {"placeholder": "#F2F2F2", "output": "#F2F2F2"}
_CALL, _NEW = "#D6E6F2", "#FBE3D4"


@drawn
def graphs(named, *, title=None):
    """Each graph in its own panel; calls of a kind that the first graph lacks stand out. Returns the first Axes.

    named: dict of words -> torch.fx.Graph.
    """
    levels = {name: _levels(graph) for name, graph in named.items()}
    deepest = max(max(level.values()) for level in levels.values())
    made, axes = figure(7.8, 0.9 + 0.5 * (deepest + 1), columns=len(named))
    panels = list(axes) if len(named) > 1 else [axes]
    known = {_says(node) for node in next(iter(named.values())).nodes}
    for ax, (name, graph) in zip(panels, named.items(), strict=True):
        _draw(ax, graph, levels[name], known)
        calls = sum(node.op.startswith("call_") for node in graph.nodes)
        ax.set_title(f"{name}: {calls} call{'s' * (calls != 1)}", loc="left", fontsize=9.5, weight="normal")
        ax.set(xlim=(-0.05, 1.05), ylim=(deepest + 0.5, -0.5))
        ax.set_axis_off()
    made.suptitle(title or _message(named), x=0.01, ha="left", weight="bold", fontsize=11)
    return panels[0]


def _draw(ax, graph, level, known):
    places = _places(graph, level)
    for node in graph.nodes:
        for source in node.all_input_nodes:
            way = [places[step] for step in _way(source, node, level)]
            for (x0, y0), (x1, y1) in pairwise(way[:-1]):
                ax.plot([x0, x1], [y0 + 0.24 * (y0 == level[source]), y1], color=FAINT, linewidth=0.9, zorder=1)
            (x0, y0), (x1, y1) = way[-2:]
            ax.annotate("", (x1, y1 - 0.24), (x0, y0 + 0.24 * (len(way) == 2)),
                        arrowprops={"arrowstyle": "-|>", "color": FAINT, "linewidth": 0.9, "shrinkA": 0,
                                    "shrinkB": 0})  # fmt: skip
    for node in graph.nodes:
        (x, y), words = places[node], _says(node)
        tint = _TINTS.get(node.op, _CALL if words in known else _NEW)
        wide = 0.035 * max(3, len(words)) + 0.03
        ax.add_patch(FancyBboxPatch((x - wide / 2, y - 0.24), wide, 0.48, boxstyle="round,pad=0,rounding_size=0.05",
                                    facecolor=tint, edgecolor=PALETTE[1] if tint == _NEW else FAINT, linewidth=0.9,
                                    zorder=3, mutation_aspect=2))  # fmt: skip
        ax.text(x, y, words, ha="center", va="center", fontsize=8.5, color=INK, zorder=4)


def _way(source, node, level) -> list:
    """The way of an arrow from a node to a reader: one place in each row between them, shared by all its readers."""
    return [source, *((source, depth) for depth in range(level[source] + 1, level[node])), node]


def _levels(graph) -> dict:
    """Rows: a node is below all that it reads, and an input just above its first reader."""
    level = {}
    for node in graph.nodes:
        level[node] = 1 + max((level[source] for source in node.all_input_nodes), default=-1)
    for node in graph.nodes:
        if node.op == "placeholder" and node.users:
            level[node] = min(level[user] for user in node.users) - 1
    return level


def _places(graph, level) -> dict:
    """Horizontal places: nodes of a row stand at equal distances, ordered by what they read and who reads them."""
    rows, near = {}, {}
    for node in graph.nodes:
        for source in node.all_input_nodes or [node]:
            way = _way(source, node, level) if source is not node else [node]
            for depth, step in enumerate(way, level[way[0]]):
                if step not in near:
                    near[step] = set()
                    rows.setdefault(depth, []).append(step)
            for one, other in pairwise(way):
                near[one].add(other)
                near[other].add(one)
    at = {step: (i + 1) / (len(row) + 1) for row in rows.values() for i, step in enumerate(row)}
    for _ in range(6):
        for depth in sorted(rows):
            pull = {step: sum(at[n] for n in near[step]) / max(1, len(near[step])) for step in rows[depth]}
            rows[depth].sort(key=pull.get)
            for i, step in enumerate(rows[depth]):
                at[step] = (i + 1) / (len(rows[depth]) + 1)
    return {step: (at[step], depth) for depth, row in rows.items() for step in row}


def _says(node) -> str:
    if node.op == "call_function":
        return getattr(node.target, "__name__", str(node.target))
    return node.target if node.op == "call_method" else node.name


def _message(named) -> str:
    counts = [sum(node.op.startswith("call_") for node in graph.nodes) for graph in named.values()]
    if len(counts) < 2 or counts[0] == counts[-1]:
        return f"{counts[0]} calls"
    return f"{counts[0]} calls become {counts[-1]}"
