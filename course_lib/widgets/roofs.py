"""A kernel that moves under the roofs, and the three limits of its time."""

from dataclasses import asdict, replace

import ipywidgets
import numpy as np

from course_lib.plots.house import INK, axes_or_new, drawn, finish, look, quantity, two_to
from course_lib.plots.roofs import Point, rates_shown, roofline
from course_lib.plots.sizes import against_size
from course_lib.roofline import Roof, Work, floor_s, regime, ridge, terms_s
from course_lib.widgets.explorer import Explorer, powers, slider
from course_lib.widgets.live import Live

__all__ = ["regime_explorer", "roofline_explorer"]

_DTYPES = {"fp32": 4, "bf16": 2}  # bytes an element


_TERMS = ("overhead", "bandwidth", "compute")


def _chain(size, dtype, ops, fused) -> tuple[Work, int]:
    """Work of one kernel and how many kernels: `ops` multiply-adds on each of 2^size elements.

    Fused, one kernel reads and writes each element once; otherwise every multiply-add does.
    """
    elements, traffic = 2**size, 2 * _DTYPES[dtype]
    return (Work(2 * ops * elements, traffic * elements), 1) if fused else (Work(2 * elements, traffic * elements), ops)


@drawn
def roofline_explorer(roofs, *, device=""):
    """A chain of multiply-adds as a point under the roofs, moved by size, dtype, length and fusion.

    The point stands at the floor of its time, launches included: small sizes hang below the roof. Elementwise
    arithmetic is fp32 and uses no matrix units, so its roof is the one named "fp32" (the last one otherwise).
    """
    roofs = [roofs] if isinstance(roofs, Roof) else list(roofs)
    own = next((roof for roof in roofs if roof.name == "fp32"), roofs[-1])
    axes = roofline(roofs, title="A chain of multiply-adds under the roofs", device=device)
    axes.set(xlim=(0.1, axes.get_xlim()[1]), ylim=rates_shown(1e8, roofs))
    (point,) = axes.plot([], [], gid="point", zorder=6, **look(1) | {"markersize": 10, "linestyle": "none"})

    def numbers(size, dtype, ops, fused):
        work, kernels = _chain(size, dtype, ops, fused)
        seconds, limit = kernels * floor_s(work, own), regime(work, own)
        words = f"{work.intensity:.3g} FLOP/byte, {kernels} kernel{'s' * (kernels > 1)}, "
        return {
            "intensity": work.intensity,
            "seconds": seconds,
            "limit": limit,
            "rate": kernels * work.flops / seconds,
            "title": f"{ops} multiply-adds on {two_to(size)} {dtype} numbers, {'fused' if fused else 'not fused'}",
            "words": f"{words}floor {quantity(seconds, 's')}: {limit} is the limit.",
        }

    def move(**state):
        seen = numbers(**state)
        point.set_data([seen["intensity"]], [seen["rate"]])
        finish(axes, seen["title"])
        return seen["words"]

    def still():
        places = [(26, "fp32", 16, False), (26, "fp32", 16, True), (26, "bf16", 16, True), (26, "fp32", 256, True),
                  (12, "fp32", 256, True)]  # fmt: skip
        points = []
        for size, dtype, ops, fused in places:
            work, kernels = _chain(size, dtype, ops, fused)
            seconds = floor_s(work, own) if regime(work, own) == "overhead" else None
            label = f"{ops} on {two_to(size)} {dtype}, {'fused' if fused else 'not fused'}"
            points.append(Point(label, kernels * work, seconds and kernels * seconds, own.name))
        title = "Fusion moves a chain of multiply-adds to the right; a small size drops it below the roof"
        return roofline(roofs, points, title=title, device=device)

    controls = {
        "size": slider("log2 of the size", 10, 30, 24),
        "dtype": ipywidgets.ToggleButtons(options=list(_DTYPES), description="stored as"),
        "ops": powers("multiply-adds", range(11), 16),
        "fused": ipywidgets.Checkbox(False, description="fused into one kernel"),
    }
    alt = (
        "Roofline of a chain of multiply-adds: unfused it sits far left on the bandwidth slope, fused it moves "
        "right with the number of multiply-adds, with bf16 storage further right; a small size falls below the roof."
    )
    known = {"roofs": [asdict(roof) for roof in roofs], "own": roofs.index(own)}
    return Explorer(axes, controls, move, still, alt, Live("roofline", numbers, lambda: known))


@drawn
def regime_explorer(roof, *, device=""):
    """Launch, traffic and arithmetic of an fp32 kernel against its size, and which of the three sets the time."""
    sizes, device = 2.0 ** np.arange(8, 31), device or f"rates of {roof.name}"
    axes = axes_or_new(None, 7.0, 4.2)
    curves = {}
    for i, name in enumerate(_TERMS):
        kind = {"color": look(i)["color"], "linestyle": look(i)["linestyle"]}
        (curves[name],) = axes.plot(sizes, np.ones_like(sizes), label=name, gid=name, **kind)
    (point,) = axes.plot([], [], "o", gid="point", color=INK, markersize=9, label="this kernel's floor", zorder=6)
    against_size(axes, "elements")
    axes.set(xlim=(sizes[0], sizes[-1]), ylim=(1e-7, 1e-1))
    axes.legend(loc="upper left")
    finish(axes, " ", device)

    def numbers(size, flops, launch_us):
        here, work = replace(roof, launch_s=launch_us * 1e-6), _element(2**size, flops)
        now, limit = terms_s(work, here), regime(work, here)
        each = ", ".join(f"{name} {quantity(now[name], 's')}" for name in _TERMS)
        return now | {
            "limit": limit,
            "title": f"At {two_to(size)} elements {limit} sets the time: {quantity(now[limit], 's')}",
            "words": f"{each}: {limit} is the limit.",
        }

    def move(size, flops, launch_us):
        seen, here = numbers(size, flops, launch_us), replace(roof, launch_s=launch_us * 1e-6)
        limits = [terms_s(_element(n, flops), here) for n in sizes]
        for name, curve in curves.items():
            curve.set_ydata([limit[name] for limit in limits])
            curve.set_linewidth(3.2 if name == seen["limit"] else 1.2)
        point.set_data([2**size], [seen[seen["limit"]]])
        finish(axes, seen["title"])
        return seen["words"]

    def still():
        return _regime_still(roof, sizes, device)

    controls = {
        "size": slider("log2 of the size", 8, 30, 16),
        "flops": powers("FLOPs an element", range(13), 2),
        "launch_us": slider("launch cost (µs)", 0, 50, max(1, min(50, round(roof.launch_s * 1e6)))),
    }
    alt = (
        "Least time against size for three launch costs and for little and much arithmetic: flat while the launch "
        "is the limit, then rising with the size; a dearer launch moves the corner to larger sizes."
    )
    return Explorer(axes, controls, move, still, alt, Live("regime", numbers, lambda: {"roof": asdict(roof)}))


def _element(size, flops) -> Work:
    """One fp32 read and one write an element, and some arithmetic."""
    return Work(flops * size, 8 * size)


@drawn
def _regime_still(roof, sizes, device):
    """Floors for three launch costs with little arithmetic, and one with so much that it is the limit."""
    axes = axes_or_new(None, 7.0, 4.2)
    fine = np.geomspace(sizes[0], sizes[-1], 300)
    much = 2 ** round(np.log2(64 * ridge(roof)))  # eight times the ridge, at 8 bytes an element
    for i, (launch_us, flops) in enumerate([(2, 2), (7, 2), (50, 2), (7, much)]):
        here = Roof(roof.name, roof.flops_per_s, roof.bytes_per_s, launch_us * 1e-6)
        kind = look(i) | {"marker": None}
        label = f"launch {launch_us} µs, {flops} FLOPs an element"
        axes.plot(fine, [floor_s(_element(n, flops), here) for n in fine], label=label, **kind)
        corner = here.launch_s / floor_s(_element(1, flops), replace(here, launch_s=0))
        axes.plot(corner, here.launch_s, color=kind["color"], marker=look(i)["marker"])
    against_size(axes, "elements")
    axes.set_xlim(sizes[0], sizes[-1])
    axes.legend(loc="upper left")
    return finish(axes, "Overhead is the limit up to a corner; a dearer launch moves it to larger sizes", device)
