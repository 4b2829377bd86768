"""Figures of time against size: one quantity, the three regimes, the corner of a fused chain."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

from course_lib.plots.house import (
    FAINT,
    GRID,
    INK,
    axes_or_new,
    drawn,
    finish,
    look,
)
from course_lib.roofline import floor_s, regime, terms_s

__all__ = ["against_size", "regimes", "repeat_curve", "sweep"]


@drawn
def regimes(sizes, seconds, roof=None, work=None, ax=None, *, xlabel="elements", title=None, device=""):
    """Time against size, log-log. With a Roof and `work` (size -> Work), the three limits and where each rules.

    seconds: one value a size, or a dict of name -> values for several series.
    """
    ax = sweep(sizes, seconds, ax, xlabel=xlabel, title=title or "Time against size", device=device, yscale="log")
    if roof is None or work is None:
        return ax
    fine = np.geomspace(min(sizes) / 1.4, max(sizes) * 1.4, 400)
    terms = [terms_s(work(size), roof) for size in fine]
    series = list(seconds.values()) if isinstance(seconds, Mapping) else [seconds]
    lowest = min([min(s) for s in series] + [floor_s(work(size), roof) for size in fine])
    highest = max([max(s) for s in series] + [floor_s(work(size), roof) for size in fine])
    for name, line in (("overhead", "--"), ("bandwidth", "-."), ("compute", ":")):
        values = [t[name] for t in terms]
        if max(values) > lowest / 2:  # a limit below the axes would only be a word in the legend
            ax.plot(fine, values, color=FAINT, linestyle=line, linewidth=1.1, label=f"{name} limit", zorder=1)
    ax.set(xlim=(fine[0], fine[-1]), ylim=(lowest / 2, highest * 4))
    found = _stretches(fine, lambda size: regime(work(size), roof))
    for i, (name, start, end) in enumerate(found):
        ax.axvspan(start, end, color=GRID if i % 2 else "white", alpha=0.6, linewidth=0, zorder=0)
        ax.text((start * end) ** 0.5, 0.985, name, transform=ax.get_xaxis_transform(), ha="center", va="top",
                fontsize=8.5, color=FAINT)  # fmt: skip
    ax.legend(loc="upper left", bbox_to_anchor=(0, 0.94))  # time only grows: this corner is free
    if title is None:
        finish(ax, _message(found, xlabel))
    return ax


def _stretches(sizes, name_of) -> list[tuple[str, float, float]]:
    """Runs of sizes with the same name, as (name, start, end); the borders are searched for between sizes."""
    found, start = [], sizes[0]
    for low, high in pairwise(sizes):
        before, after = name_of(low), name_of(high)
        if before == after:
            continue
        for _ in range(20):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if name_of(middle) == before else (low, middle)
        found.append((before, start, high))
        start = high
    return [*found, (name_of(sizes[-1]), start, sizes[-1])]


def _message(found, xlabel) -> str:
    if len(found) == 1:
        return f"{found[0][0].capitalize()} sets the time at all these sizes"
    steps = [f"{name} up to {_count(end)}" for name, _, end in found[1:-1]] + [found[-1][0]]
    start = f"{found[0][0].capitalize()} sets the time up to {_count(found[0][2])} {xlabel}"
    return ", then ".join([start, *steps])


def _count(n: float) -> str:
    """Three digits: "1,350", "2.47 million"."""
    n = float(f"{n:.3g}")
    return f"{n:,.0f}" if n < 1e6 else f"{n / 1e6:,.4g} million"


def against_size(ax, xlabel, ylabel="time", unit="s", yscale="log") -> None:
    """The axes of a figure against size: powers of two below, units with prefixes at the left."""
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(LogLocator(base=2, numticks=10))
    ax.set(yscale=yscale, xlabel=xlabel, ylabel=ylabel)
    ax.yaxis.set_major_formatter(EngFormatter(unit))
    ax.grid(True, axis="y")


def _more_ticks(ax, values) -> None:
    """A log axis over less than two and a half decades also gets its 2s and 5s named."""
    if max(values) < 300 * min(values):
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_minor_formatter(NullFormatter())  # else 3 and 4 are named too, and as powers of ten


@drawn
def sweep(
    sizes,
    series,
    ax=None,
    *,
    xlabel="elements",
    ylabel="time",
    unit="s",
    ceiling=None,
    xscale="log",
    yscale="linear",
    title="",
    device="",
):
    """One quantity against size for one or several series.

    ceiling: (label, value) of what cannot be passed. xscale "linear" is for counts, such as the number of a run.
    """
    ax = axes_or_new(ax, 7.0, 4.2)
    named = series if isinstance(series, Mapping) else {"measured": series}
    for i, (name, values) in enumerate(named.items()):
        # of many points only some get a marker, or the markers would hide the line
        ax.plot(sizes, values, label=name, markevery=max(1, len(values) // 20), **look(i))
    if ceiling is not None:
        ax.axhline(ceiling[1], color=INK, linewidth=1)
        ax.annotate(ceiling[0], (0, ceiling[1]), xycoords=ax.get_yaxis_transform(), xytext=(3, 3),
                    textcoords="offset points", fontsize=8.5)  # fmt: skip
    against_size(ax, xlabel, ylabel, unit, yscale)
    if xscale == "linear":
        ax.set_xscale("linear")
        first, last = min(sizes), max(sizes)
        inside = [t for t in MaxNLocator(integer=True).tick_values(first, last) if first < t <= last]
        ax.set_xticks([first, *inside])  # the first run is what such a figure is about
    if yscale == "linear":
        ax.set_ylim(bottom=0)
    else:
        _more_ticks(ax, [v for values in named.values() for v in values])
    if len(named) > 1:
        ax.legend()
    return finish(ax, title, device)


@drawn
def repeat_curve(repeats, seconds, *, memory_s=None, one_s=None, ax=None, title=None, device=""):
    """Time against the number of cosines. Fused, it is flat until arithmetic costs more than the memory traffic.

    memory_s: one read and one write; one_s: one cosine over all elements. Given both, the floor and its corner.
    seconds: one value a repeat, or a dict of name -> values.
    """
    ax = axes_or_new(ax, 7.0, 4.2)
    named = seconds if isinstance(seconds, Mapping) else {"measured": seconds}
    for i, (name, values) in enumerate(named.items()):
        ax.plot(repeats, values, label=name, **look(i) | {"linestyle": "none"})
    message = "Time against the number of cosines"
    if memory_s and one_s:
        corner = memory_s / one_s
        xs = sorted({min(repeats), max(repeats), min(max(corner, min(repeats)), max(repeats))})
        ax.plot(
            xs,
            [max(memory_s, x * one_s) for x in xs],
            color=INK,
            zorder=1,
            label="floor: memory, then arithmetic",
        )
        message = f"Beyond {corner:.3g} cosines the arithmetic sets the time"
        if min(repeats) < corner < max(repeats):
            ax.axvline(corner, color=FAINT, linewidth=0.7, linestyle=(0, (2, 3)))
            ax.annotate(f"corner at {corner:.3g}", (corner, 0), xycoords=ax.get_xaxis_transform(), xytext=(4, 5),
                        textcoords="offset points", fontsize=8.5, color=FAINT)  # fmt: skip
    if max(repeats) > 16 * min(repeats):
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        _more_ticks(ax, [v for values in named.values() for v in values])
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        ax.set_ylim(bottom=0)
        ax.set_xticks(list(repeats) if len(repeats) <= 16 else ax.get_xticks())
    ax.yaxis.set_major_formatter(EngFormatter("s"))
    ax.grid(True, axis="y")
    ax.set(xlabel="number of cosines in one kernel", ylabel="time")
    ax.legend(loc="upper left")
    return finish(ax, title or message, device)
