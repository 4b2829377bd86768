"""Figures of measured times: intervals, distance from the floor, samples, who was busy when."""

import textwrap

import numpy as np
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter

from course_lib.plots.house import (
    FAINT,
    HATCHES,
    INK,
    PALETTE,
    axes_or_new,
    drawn,
    finish,
    look,
    percent,
    quantity,
)

__all__ = ["against_floor", "histogram", "timeline", "timing"]


@drawn
def timing(timings, floor_s=None, ax=None, *, title=None, device=""):
    """Medians with their 95 % intervals, the middle 80 % of the samples as a thin line, the floor dashed.

    timings: dict of name -> Timing (median_s, low_s, high_s, p10_s, p90_s).
    """
    ax = axes_or_new(ax, 7.0, 1.3 + 0.4 * len(timings))
    for i, timed in enumerate(timings.values()):
        kind = look(i)
        ax.plot([timed.p10_s, timed.p90_s], [i, i], color=FAINT, linewidth=1)
        ax.plot([timed.low_s, timed.high_s], [i, i], color=kind["color"], linewidth=6, alpha=0.5)
        ax.plot(timed.median_s, i, color=kind["color"], marker=kind["marker"])
        words = quantity(timed.median_s, "s")
        if floor_s:
            words += f", {percent(floor_s / timed.median_s)} of the floor's speed"
        ax.annotate(words, (max(timed.p90_s, timed.high_s), i), xytext=(9, 0), textcoords="offset points",
                    va="center", fontsize=8.5)  # fmt: skip
    if floor_s:
        ax.axvline(floor_s, color=INK, linestyle="--", linewidth=1)
        ax.annotate(f"floor {quantity(floor_s, 's')}", (floor_s, 1), xycoords=ax.get_xaxis_transform(),
                    xytext=(-4, 0), textcoords="offset points", ha="right", va="top", fontsize=8.5)  # fmt: skip
    longest = max(max(t.p90_s, t.high_s) for t in timings.values())
    ax.set(xlim=(0, 1.7 * longest), ylim=(len(timings) - 0.4, -0.7))
    ax.set_xlabel("time (thin line: middle 80 % of runs; bar: 95 % interval of the median)")
    ax.set_yticks(range(len(timings)), list(timings))
    ax.xaxis.set_major_formatter(EngFormatter("s"))
    ax.grid(True, axis="x")
    fastest = min(timings, key=lambda name: timings[name].median_s)
    return finish(ax, title or f"{fastest} takes {quantity(timings[fastest].median_s, 's')}", device)


@drawn
def against_floor(rows, ax=None, *, title=None, device=""):
    """Measured time, the floor and, where known, a reference kernel, one line a size.

    rows: (sizes in words, seconds, floor seconds, reference seconds or None).
    """
    ax = axes_or_new(ax, 7.0, 1.2 + 0.5 * len(rows))
    for i, (_, seconds, floor, reference) in enumerate(rows):
        ax.barh(
            i,
            seconds / floor,
            height=0.55,
            color=PALETTE[5],
            edgecolor=PALETTE[0],
            label="yours" if i == 0 else None,
        )
        words = f"{quantity(seconds, 's')}, {percent(floor / seconds)} of the floor's speed"
        ends = max(seconds, floor, reference or 0) / floor  # right of the bar, the floor and the reference
        ax.annotate(words, (ends, i), xytext=(9, 0), textcoords="offset points", va="center", fontsize=8.5)
        if reference:
            ax.plot(reference / floor, i, "D", color=INK, markersize=6, label="reference" if i == 0 else None)
    ax.axvline(1, color=INK, linestyle="--", linewidth=1.2, label="floor")
    longest = max(max(seconds, reference or 0) / floor for _, seconds, floor, reference in rows)
    ax.set(xlim=(0, 2.6 * max(1.0, longest)), ylim=(len(rows) - 0.5, -0.6), xlabel="time / floor")
    ax.set_yticks(range(len(rows)), [_at_commas(row[0]) for row in rows])
    worst = max(seconds / floor for _, seconds, floor, _ in rows)
    finish(ax, title or f"At most {worst:.3g} times the floor", device)
    # between title and axes: beside them it would cover words where sizes are long
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0, borderpad=0.2)
    ax.set_title(ax.get_title(loc="left"), loc="left", pad=26)
    return ax


def _at_commas(sizes: str, width: int = 38) -> str:
    """In lines that end at a comma."""
    parts = sizes.replace(" ", "\N{NO-BREAK SPACE}").replace(",\N{NO-BREAK SPACE}", ", ")
    return textwrap.fill(parts, width, break_long_words=False)


@drawn
def histogram(series, ax=None, *, xlabel, bins=40, log=False, title="", device=""):
    """How values are spread, as outlines that can lie over one another. series: dict of name -> values.

    With `log` the bins grow by a constant factor and values must be positive.
    """
    ax = axes_or_new(ax, 7.0, 3.6)
    named = {name: np.asarray(values, dtype=float).ravel() for name, values in series.items()}
    together = np.concatenate(list(named.values()))
    space = np.geomspace if log else np.linspace
    low, high = together.min(), together.max()
    edges = space(low, high if high > low else low + (abs(low) or 1.0), bins + 1)
    for i, (name, values) in enumerate(named.items()):
        counts, _ = np.histogram(values, edges)
        kind = {"color": look(i)["color"], "linestyle": look(i)["linestyle"]}
        ax.stairs(counts / len(values), edges, linewidth=1.6, label=name, **kind)
        ax.axvline(np.median(values), linewidth=0.8, **kind)
    if log:
        ax.set_xscale("log")
    ax.yaxis.set_major_formatter(lambda value, _: percent(value))
    ax.set(xlabel=f"{xlabel} (thin line: median)", ylabel="share of values", ylim=(0, None))
    if len(named) > 1:
        ax.legend()
    return finish(ax, title, device)


@drawn
def timeline(lanes, ax=None, *, title=None, device=""):
    """What ran when. lanes: dict of lane name -> list of (start_s, end_s, label); equal labels look alike."""
    ax = axes_or_new(ax, 7.0, 1.1 + 0.55 * len(lanes))
    spans = [span for lane in lanes.values() for span in lane]
    start, end = min(s for s, _, _ in spans), max(e for _, e, _ in spans)
    labels = list(dict.fromkeys(label for _, _, label in spans))
    looks = {label: (PALETTE[i % 7], HATCHES[(i // 7 + i) % 7]) for i, label in enumerate(labels)}
    for y, lane in enumerate(lanes.values()):
        for s, e, label in _joined(lane, (end - start) / 2000):
            colour, hatch = looks[label]
            # no edges: a white line between two kernels would look like time in which nothing ran
            ax.barh(y, e - s, left=s - start, height=0.62, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
    busy = {name: _covered(lane) / (end - start) for name, lane in lanes.items()}
    ax.set_yticks(range(len(lanes)), [f"{name}\n{percent(busy[name])} busy" for name in lanes])
    ax.set(xlim=(0, (end - start) * 1.01), ylim=(len(lanes) - 0.5, -0.5), xlabel="time")
    ax.xaxis.set_major_formatter(EngFormatter("s"))
    handles = [Patch(facecolor=c, hatch=h, edgecolor="white", label=label) for label, (c, h) in looks.items()]
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), borderaxespad=0.2)
    idlest = min(busy, key=busy.get)
    return finish(ax, title or f"{idlest} is busy {percent(busy[idlest])} of the time", device)


def _joined(lane, unseen_s) -> list[tuple[float, float, str]]:
    """Spans in order; neighbours with one label and a gap too short to be seen become one, so hatches run through."""
    joined = []
    for start, end, label in sorted(lane):
        if joined and joined[-1][2] == label and start - joined[-1][1] <= unseen_s:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]), label)
        else:
            joined.append((start, end, label))
    return joined


def _covered(lane) -> float:
    """Seconds that at least one interval covers."""
    covered, until = 0.0, float("-inf")
    for start, end, _ in sorted(lane):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered
