"""What fills a multiprocessor, drawn: how many programs fit beside each other, and what runs out first."""

from course_lib.cards import architecture
from course_lib.compiled.occupancy import residents
from course_lib.plots.house import FAINT, HATCHES, INK, PALETTE, axes_or_new, drawn, finish

__all__ = ["programs_that_fit"]

_BUDGETS = ("registers", "shared memory", "warps")


@drawn
def programs_that_fit(made, ax=None, *, title=None):
    """Registers, shared memory and warps of one multiprocessor, and the share that each resident program takes.

    made: dict of name -> what `compile_kernel` returned.
    """
    ax = axes_or_new(ax, 7.4, 1.4 + 0.75 * len(made))
    for y, one in enumerate(made.values()):
        here = residents(one)
        has = architecture(one.arch)
        shares = (here.registers / has.registers, here.shared_bytes / has.shared_bytes, one.num_warps / has.warps)
        for i, share in enumerate(shares):
            at = y + (i - 1) * 0.25
            for program in range(here.programs):
                ax.barh(at, share, left=program * share, height=0.22, color=PALETTE[i], hatch=HATCHES[i],
                        edgecolor="white", linewidth=1, label=_BUDGETS[i] if y == program == 0 else None)  # fmt: skip
        ax.text(1.02, y, _words(one, here), va="center", fontsize=8.5)
    ax.axvline(1, color=INK, linewidth=1)
    ax.set(xlim=(0, 1.8), ylim=(len(made) - 0.45, -1.0), xlabel="share of one multiprocessor")
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    ax.set_yticks(range(len(made)), list(made))
    ax.tick_params(axis="y", length=0, color=FAINT)
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        ax.legend(handles, labels, loc="upper left", ncols=3, borderaxespad=0)
    counts = [residents(one).programs for one in made.values()]
    span = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    message = f"{span} program{'s' * (max(counts) != 1)} fit{'s' * (max(counts) == 1)} on a multiprocessor"
    return finish(ax, title or message)


def _words(one, here) -> str:
    if here.programs == 0:
        return f"does not fit: {here.limit}"
    spills = f",\nspills {one.spills_bytes} B" if one.spills_bytes else ""
    return f"{here.programs}; {here.limit} {'runs' if here.limit == 'shared memory' else 'run'} out{spills}"
