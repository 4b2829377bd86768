"""The roofline figure: kernels as points under the roofs of one or several machines."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import EngFormatter

from course_lib.drawing.house import FAINT, INK, axes_or_new, drawn, finish, look, percent, quantity
from course_lib.roofline import Roof, Work, attainable, ridge

__all__ = ["Point", "roofline"]


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

    roofs: a Roof or several. points: Point or tuples (label, Work, seconds or None[, roof name]).
    """
    roofs = [roofs] if isinstance(roofs, Roof) else list(roofs)
    points = [Point(*p) for p in points]
    by_name = {roof.name: roof for roof in roofs}
    under = [by_name[p.roof] if p.roof else roofs[0] for p in points]
    for point in points:
        if not 0 < point.intensity < np.inf:
            raise ValueError(f"{point.label!r} has no place on a log axis: {point.work}")
    ax = axes_or_new(ax, 7.0, 4.4)
    ax.set(xscale="log", yscale="log", xlabel="arithmetic intensity (FLOP/byte)", ylabel="arithmetic rate")
    low, high = _roofline_range(roofs, points)
    floor = min([attainable(low, r) for r in roofs] + [p.flops_per_s(r) for p, r in zip(points, under)])
    ax.set(xlim=(low, high), ylim=(floor / 2, 3 * max(r.flops_per_s for r in roofs)))
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
    ax.legend(loc="lower right")
    finish(ax, title or _roofline_message(roofs, points, under), device)
    _label_points(ax, points, under)
    return ax


def _roofline_range(roofs, points) -> tuple[float, float]:
    ridges, at = [ridge(r) for r in roofs], [p.intensity for p in points]
    return min([r / 100 for r in ridges] + [i / 3 for i in at]), max([r * 12 for r in ridges] + [i * 4 for i in at])


def _draw_roof(ax, roof, roofs, i, low, high):
    corner = ridge(roof)
    # of several roofs over the same memory only the highest draws the slope: the others would hide it
    own_slope = roof.flops_per_s == max(r.flops_per_s for r in roofs if r.bytes_per_s == roof.bytes_per_s)
    xs = ([low] if own_slope else []) + [corner, high]
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
    return f"From {percent(least)} of the roof ({lowest}) to {percent(most)} ({highest})"


def _label_points(ax, points, under):
    """Put each label where it covers no line, marker or other label, as far as that is possible."""
    fig = ax.figure
    fig.draw_without_rendering()  # the layout must be settled before text is measured
    at = [ax.transData.transform((p.intensity, p.flops_per_s(r))) for p, r in zip(points, under)]
    taken = [np.array([xy]) for xy in at] + [_dense(ax.transData.transform(line.get_xydata())) for line in ax.lines]
    boxes = [ax.get_legend().get_window_extent()]
    for point, roof in zip(points, under):
        text = point.label if point.seconds is None else f"{point.label}, {percent(point.share(roof))}"
        options = []
        for dx, dy, ha, va in _PLACES:
            made = ax.annotate(text, (point.intensity, point.flops_per_s(roof)), xytext=(dx, dy),
                               textcoords="offset points", ha=ha, va=va, fontsize=8.5, zorder=6)  # fmt: skip
            box = made.get_window_extent()
            cost = sum(int(box.overlaps(other)) * 50 for other in boxes)
            cost += sum(int(((xy > box.min) & (xy < box.max)).all(axis=1).sum()) for xy in taken)
            cost += 100 * (not (ax.bbox.x0 <= box.x0 and box.x1 <= ax.bbox.x1 and box.y1 <= ax.bbox.y1))
            options.append((cost, len(options), made, box))
        best = min(options)[1]
        for _, k, made, box in options:
            if k == best:
                boxes.append(box)
            else:
                made.remove()


_PLACES = (
    (9, -5, "left", "top"), (9, 0, "left", "center"), (0, -9, "center", "top"), (9, 5, "left", "bottom"),
    (-9, 5, "right", "bottom"), (-9, 0, "right", "center"), (0, 9, "center", "bottom"), (-9, -5, "right", "top"),
    (12, -18, "left", "top"), (-12, 18, "right", "bottom"), (0, -22, "center", "top"), (0, 22, "center", "bottom"),
)  # fmt: skip


def _dense(line: np.ndarray) -> np.ndarray:
    """A polyline as points close enough together that none passes unseen through a box of text."""
    return np.concatenate([np.linspace(a, b, 200) for a, b in pairwise(line)]) if len(line) > 1 else line
