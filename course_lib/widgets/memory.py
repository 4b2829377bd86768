"""Memory of a stack of MLPs through forward and backward, by what is kept."""

import ipywidgets

from course_lib.memory.keeping import KEPT, mlp_ledger
from course_lib.plots.house import axes_or_new, drawn, figure
from course_lib.plots.memory_areas import memory_by_owner, scale_of
from course_lib.table import bytes_text
from course_lib.widgets.explorer import Explorer, slider

__all__ = ["memory_explorer"]

OWNERS = ("x, kept", "h, kept", "a, kept", "the result", "gradients", "in passing")


@drawn
def memory_explorer(tokens=16384, width=1152, hidden=4304, layers=4):
    """A stack of x + mlp(x) in bf16: who owns the memory, operator by operator, by what is kept."""
    axes = axes_or_new(None, 7.4, 4.0)

    def move(keep, layers):
        axes.clear()
        account = mlp_ledger(tokens, width, hidden, keep, layers)
        memory_by_owner(account, axes, title=f"{layers} layers, {keep} kept", looks=OWNERS)
        held, peak = bytes_text(account.held_bytes), bytes_text(account.peak_bytes)
        return f"Held between forward and backward: {held}, the result among it. At the peak: {peak}."

    def still():
        made, several = figure(8.2, 8.4, rows=len(KEPT))
        accounts = {keep: mlp_ledger(tokens, width, hidden, keep, layers) for keep in KEPT}
        limit = 1.12 * max(account.peak_bytes for account in accounts.values())
        operators = max(len(account.moments) for account in accounts.values())
        scale, unit = scale_of(limit)
        for ax, (keep, account) in zip(several, accounts.items(), strict=True):
            held, peak = (f"{count / scale:.4g} {unit}" for count in (account.held_bytes, account.peak_bytes))
            title = f"{keep}: {held} held, {peak} at the peak"
            memory_by_owner(account, ax, title=title, limit=limit, looks=OWNERS, operators=operators)
        return made

    controls = {
        "keep": ipywidgets.Dropdown(options=list(KEPT), description="kept", style={"description_width": "11em"}),
        "layers": slider("layers", 1, 12, layers),
    }
    alt = (
        "Memory of a stack of MLPs over the operators of forward and backward for three policies: it climbs through "
        "forward and falls through backward; with everything kept it climbs highest, with only inputs kept it hardly "
        "climbs, and every layer's backward makes a short peak of its own."
    )
    return Explorer(axes, controls, move, still, alt)
