"""The roofline figure: kernels as points under the roofs of one or several machines."""

from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from matplotlib.patheffects import withStroke
from matplotlib.ticker import EngFormatter
from matplotlib.transforms import Bbox

from course_lib.plots.house import FAINT, INK, axes_or_new, drawn, finish, look, percent, quantity
from course_lib.roofline import Roof, Work, attainable, ridge

__all__ = ["Point", "rates_shown", "roofline"]


class Point(NamedTuple):
    """One kernel on a roofline. Without `seconds` it is a prediction: hollow, and on the roof."""

    label: str
    work: Work
    seconds: float | None = None
    roof: str | None = None  # name of the roof it is measured against; the first one when absent

    @property
    def intensity(self) -> float:
        return self.work.intensity

    def flops_per_s(self, roof: Roof) -> float:
        return attainable(self.intensity, roof) if self.seconds is None else self.work.flops / self.seconds

    def share(self, roof: Roof) -> float:
        """Share of what the roof allows at this intensity."""
        return self.flops_per_s(roof) / attainable(self.intensity, roof)


@drawn
def roofline(roofs, points=(), ax=None, *, title=None, device=""):
    """FLOP/s against intensity, log-log, with each roof's ridge and each point's share of its roof.

    From a measured point a thin line goes up to the part of the roof that binds it.

    roofs: a Roof or several. points: Point or tuples (label, Work, seconds or None[, roof name]).
    """
    roofs = [roofs] if isinstance(roofs, Roof) else list(roofs)
    points = [Point(*p) for p in points]
    by_name = {roof.name: roof for roof in roofs}
    under = [by_name[p.roof] if p.roof else roofs[0] for p in points]
    for point in points:
        if not 0 < point.intensity < np.inf:
            raise ValueError(f"{point.label!r} has no place on a log axis: {point.work}")
        if point.seconds is not None and not point.seconds > 0:
            raise ValueError(f"{point.label!r} took {point.seconds:g} s: was something else at work? Measure it again.")
    ax = axes_or_new(ax, 7.0, 4.4)
    ax.set(xscale="log", yscale="log", xlabel="arithmetic intensity (FLOP/byte)", ylabel="arithmetic rate")
    low, high = _roofline_range(roofs, points)
    floor = min([attainable(low, r) for r in roofs] + [p.flops_per_s(r) for p, r in zip(points, under)])
    ax.set(xlim=(low, high), ylim=rates_shown(floor / 4, roofs))
    ax.yaxis.set_major_formatter(EngFormatter("FLOP/s"))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.grid(True, which="major")
    for i, roof in enumerate(roofs):
        _draw_roof(ax, roof, roofs, i, low, high)
    for i, (point, roof) in enumerate(zip(points, under)):
        kind = look(i) | {"linestyle": "none", "markersize": 8, "markeredgewidth": 1.6, "zorder": 5}
        if point.seconds is None:
            kind["markerfacecolor"] = "white"
        ax.plot(point.intensity, point.flops_per_s(roof), **kind)
        if point.seconds is not None and point.share(roof) < 1:
            # up to the line that binds it, the slope or the flat part; a line of the axes, so that labels keep off it
            up = [point.flops_per_s(roof), attainable(point.intensity, roof)]
            ax.plot([point.intensity] * 2, up, color=FAINT, linewidth=1.2)
    ax.legend(loc="upper left")  # above the slope, where no point can be
    finish(ax, title or _roofline_message(roofs, points, under), device)
    _label_points(ax, points, under)
    return ax


def _roofline_range(roofs, points) -> tuple[float, float]:
    ridges, at = [ridge(r) for r in roofs], [p.intensity for p in points]
    return min([r / 100 for r in ridges] + [i / 3 for i in at]), max([r * 12 for r in ridges] + [i * 4 for i in at])


def rates_shown(lowest: float, roofs) -> tuple[float, float]:
    """Limits of the rate axis that leave room for the legend above the highest roof."""
    legend = 0.06 * len(roofs) + 0.05  # share of the height
    highest = max(roof.flops_per_s for roof in roofs)
    return lowest, highest * (highest / lowest) ** (legend / (1 - legend))


def _draw_roof(ax, roof, roofs, i, low, high):
    corner = ridge(roof)
    # roofs over the same memory share a slope: only the highest draws it
    own_slope = roof.flops_per_s == max(r.flops_per_s for r in roofs if r.bytes_per_s == roof.bytes_per_s)
    xs = ([low / 1000] if own_slope else []) + [corner, high]
    label = (
        f"{roof.name}: {quantity(roof.flops_per_s, 'FLOP/s')}, {quantity(roof.bytes_per_s, 'B/s')}, "
        f"ridge at {corner:.3g} FLOP/byte"
    )
    ax.plot(xs, [attainable(x, roof) for x in xs], **look(i) | {"color": INK}, label=label, markersize=5,
            markevery=[len(xs) - 2], markerfacecolor="white")  # fmt: skip
    ax.vlines(corner, 0, roof.flops_per_s, color=FAINT, linewidth=0.7, linestyle=(0, (2, 3)))


def _roofline_message(roofs, points, under) -> str:
    shares = sorted((p.share(r), p.label) for p, r in zip(points, under) if p.seconds is not None)
    if not shares:
        return f"Below {ridge(roofs[0]):.3g} FLOP/byte the memory is the limit, above it the arithmetic"
    if len(shares) == 1:
        return f"{shares[0][1]} reaches {percent(shares[0][0])} of its roof"
    (least, lowest), (most, highest) = shares[0], shares[-1]
    if percent(least) == percent(most):
        return f"All reach {percent(least)} of the roof"
    return f"From {percent(least)} of the roof ({lowest}) to {percent(most)} ({highest})"


def _label_points(ax, points, under):
    """Put each label where it covers no line, marker or other label and is nearest to its own marker, as far as that is
    possible."""
    if not points:
        return
    ax.figure.draw_without_rendering()  # the layout must be settled before text is measured
    at = [ax.transData.transform((p.intensity, p.flops_per_s(r))) for p, r in zip(points, under)]
    lines = np.concatenate([_dense(ax.transData.transform(line.get_xydata())) for line in ax.lines])
    boxes = [ax.get_legend().get_window_extent(), *(Bbox.from_bounds(x - 7, y - 7, 14, 14) for x, y in at)]
    scale = ax.figure.dpi / 72  # pixels a point
    for xy, point, roof in zip(at, points, under):
        words = point.label if point.seconds is None else f"{point.label}, {percent(point.share(roof))}"
        text = ax.text(0, 0, words, fontsize=8.5, transform=None)
        width, height = text.get_window_extent().size
        text.remove()
        options = []
        for distance, angle in product((8, 14, 22, 38, 56), _ANGLES):
            aside = np.array([np.cos(angle), np.sin(angle)])
            corner = aside * (np.array([width, height]) / 2 + distance * scale) - (width / 2, height / 2)
            corner[0] = min(corner[0], ax.bbox.x1 - 4 * scale - xy[0] - width)  # inside the axes, with some room
            box = Bbox.from_bounds(*(xy + corner), width, height)
            covered = ((lines > box.min) & (lines < box.max)).all(axis=1).sum()
            outside = not (ax.bbox.x0 <= box.x0 and box.x1 <= ax.bbox.x1 and ax.bbox.y0 <= box.y0)
            mistaken = any(_apart(box, other) < 1.2 * _apart(box, xy) for other in at if other is not xy)
            cost = 100 * box.count_overlaps(boxes) + 3 * covered + 1000 * outside + 30 * mistaken
            options.append((cost, len(options), distance, aside, corner / scale, box))
        _, _, distance, aside, corner, box = min(options, key=lambda option: option[:2])
        boxes.append(box)
        leader = {"arrowstyle": "-", "linewidth": 0.6, "color": FAINT, "shrinkA": 1, "shrinkB": 5}
        ax.annotate(words, (point.intensity, point.flops_per_s(roof)), xytext=corner, textcoords="offset points",
                    fontsize=8.5, zorder=6, path_effects=[withStroke(linewidth=2.5, foreground="white")],
                    arrowprops=leader | {"relpos": 0.5 - aside / 2} if distance > 10 else None)  # fmt: skip


_ANGLES = np.radians([-20, -45, 0, -90, 20, 160, 180, 90, 45, 135, -160, -135])  # the best ones first


def _apart(box: Bbox, xy: np.ndarray) -> float:
    return float(np.hypot(*np.maximum(np.maximum(box.min - xy, xy - box.max), 0)))


def _dense(line: np.ndarray) -> np.ndarray:
    """A polyline as points close enough together that none passes unseen through a box of text."""
    return np.concatenate([np.linspace(a, b, 200) for a, b in pairwise(line)]) if len(line) > 1 else line
