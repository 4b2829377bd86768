"""A step of data parallel training on every rank: who computes, who sends, who waits."""

from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter

from course_lib.distributed.timeline import COMMUNICATION, COMPUTE, WAITING, exposed_s
from course_lib.plots.house import FAINT, HATCHES, PALETTE, axes_or_new, drawn, finish, percent, quantity

__all__ = ["ranks"]

_SHADES = (PALETTE[0], PALETTE[5])  # spans of one kind that follow each other stay apart


@drawn
def ranks(spans, ax=None, *, title=None, device=""):
    """Two lanes a rank, computing above and communicating below. spans: what `distributed.together` returns."""
    numbers = sorted({span.rank for span in spans})
    ax = axes_or_new(ax, 7.4, 1.4 + 0.85 * len(numbers))
    labels = list(dict.fromkeys(span.label for span in spans if span.kind == COMPUTE))
    looks = {label: (_SHADES[i % 2], HATCHES[2 * (i // 2) % 7]) for i, label in enumerate(labels)}
    looks |= {COMMUNICATION: (PALETTE[1], ""), WAITING: ("white", "////")}
    end = max(span.end_s for span in spans)
    for row, number in enumerate(numbers):
        for span in (span for span in spans if span.rank == number):
            colour, hatch = looks[span.label if span.kind == COMPUTE else span.kind]
            short = colour if span.seconds < 0.01 * end else "white"  # nothing would be left of it beside its edges
            edge = PALETTE[1] if span.kind == WAITING else short
            place = 2 * row if span.kind == COMPUTE else 2 * row + 0.8
            ax.barh(place, span.seconds, left=span.start_s, height=0.72, color=colour, hatch=hatch, edgecolor=edge,
                    linewidth=0.4)  # fmt: skip
    bare = {number: exposed_s(spans, number) for number in numbers}
    ax.set_yticks(
        [2 * row + 0.4 for row in range(len(numbers))],
        [f"rank {number}\n{quantity(bare[number], 's')} without computing" for number in numbers],
    )
    ax.set(xlim=(0, 1.01 * end), ylim=(2 * len(numbers) - 0.6, -0.6), xlabel="time")
    ax.xaxis.set_major_formatter(EngFormatter("s"))
    ax.tick_params(axis="y", length=0, color=FAINT)
    kinds = {span.kind for span in spans}
    shown = [name for name in looks if name in labels or name in kinds]
    words = {COMMUNICATION: "sending", WAITING: "waiting for a rank"}
    handles = [
        Patch(facecolor=looks[n][0], hatch=looks[n][1], edgecolor=PALETTE[1] if n == WAITING else "white",
              label=words.get(n, n)) for n in shown
    ]  # fmt: skip
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), borderaxespad=0.2)
    most = max(bare, key=bare.get)
    return finish(
        ax, title or f"{percent(bare[most] / end)} of the time rank {most} sends or waits and computes nothing", device
    )
