"""When compiling pays: total time against the number of calls, and the gain against the width of a model."""

import numpy as np
from matplotlib.ticker import EngFormatter, NullFormatter

from course_lib.plots.house import FAINT, INK, axes_or_new, drawn, finish, look, quantity

__all__ = ["break_even_calls", "gains", "pays", "totals", "until_even"]


def break_even_calls(eager_s, compiled_s, compile_s) -> float:
    """After how many calls the two totals meet; infinity where a call gains nothing."""
    gain = eager_s - compiled_s
    return compile_s / gain if gain > 0 else float("inf")


@drawn
def totals(programs, ax=None, *, title=None, device=""):
    """Seconds that were saved up to a number of calls; below zero compiling has not yet paid.

    programs: dict of name -> (eager seconds a call, compiled seconds a call, seconds of compiling).
    """
    ax = axes_or_new(ax, 7.0, 4.0)
    even = [break_even_calls(*costs) for costs in programs.values()]
    most = until_even(even)
    calls = np.linspace(0, most, 200)
    for i, ((name, (eager, compiled, once)), meets) in enumerate(zip(programs.items(), even, strict=True)):
        kind = look(i) | {"marker": None}
        ax.plot(calls, calls * (eager - compiled) - once, label=f"{name}: {pays(meets)}", **kind)
        if meets <= most:
            ax.plot(meets, 0, color=kind["color"], marker=look(i)["marker"], markersize=8, zorder=5)
    ax.axhline(0, color=INK, linewidth=1)
    ax.set(xlim=(0, most), xlabel="calls", ylabel="time saved by compiling")
    ax.yaxis.set_major_formatter(EngFormatter("s"))
    ax.grid(True, axis="y")
    ax.legend(loc="upper left")
    return finish(ax, title or f"{next(iter(programs))}: {pays(even[0])}", device)


def until_even(even) -> float:
    """How many calls a figure shows: the last meeting and some room."""
    finite = [n for n in even if n < float("inf")]
    return 1.5 * max(finite, default=100.0)


def pays(meets) -> str:
    """After how many calls, in words."""
    return "never pays" if meets == float("inf") else f"pays after {int(np.ceil(meets)):,} calls"


@drawn
def gains(series, ax=None, *, title=None, device=""):
    """Eager time over compiled time against the width. series: dict of name -> {width: gain}; empty: not drawn.

    Names with the same words before their last comma ("bf16, measured" and "bf16, counted") share a colour and a
    marker; what was counted is dashed, with hollow markers.
    """
    ax = axes_or_new(ax, 7.0, 4.0)
    drawn_names = [name for name, rows in series.items() if rows]
    subjects = list(dict.fromkeys(map(_subject, drawn_names)))
    for name in drawn_names:
        kind = look(subjects.index(_subject(name))) | {"linestyle": "-"}
        if name.endswith(", counted"):
            kind |= {"linestyle": "--", "markerfacecolor": "none"}
        ax.plot(list(series[name]), list(series[name].values()), label=name, **kind)
    widths = sorted({width for rows in series.values() for width in rows})
    ax.axhline(1, color=INK, linewidth=1)
    ax.set_xscale("log", base=2)
    ax.set_xticks(widths, [f"{width}" for width in widths], rotation=0 if len(widths) < 7 else 45)
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.tick_params(axis="x", which="minor", length=0, color=FAINT)
    ax.set(xlabel="width of the model", ylabel="eager time / compiled time")
    ax.grid(True, axis="y")
    ax.legend()
    return finish(ax, title or "The wider the model, the less compiling gains", device)


def _subject(name: str) -> str:
    return name.rpartition(", ")[0] or name


def saved_words(eager_s, compiled_s, compile_s) -> str:
    """One sentence about a program."""
    meets = break_even_calls(eager_s, compiled_s, compile_s)
    if meets == float("inf"):
        return "A call gains nothing: compiling never pays."
    after = f"{int(np.ceil(meets)):,} calls, {quantity(meets * eager_s, 's')} of eager running"
    return f"A call saves {quantity(eager_s - compiled_s, 's')}; compiling is paid back after {after}."
