"""Memory of a stack of MLPs through forward and backward, by what is kept."""

import functools

import ipywidgets

from course_lib.memory.keeping import KEPT, mlp_ledger
from course_lib.plots.house import axes_or_new, drawn, figure
from course_lib.plots.memory_areas import memory_by_owner, scale_of
from course_lib.table import bytes_text
from course_lib.widgets.explorer import Explorer, slider
from course_lib.widgets.live import Live

__all__ = ["memory_explorer"]

MOST_LAYERS = 12
OWNERS = ("x, kept", "h, kept", "a, kept", "the result", "gradients", "in passing")


@drawn
def memory_explorer(tokens=16384, width=1152, hidden=4304, layers=4):
    """A stack of x + mlp(x) in bf16: who owns the memory, operator by operator, by what is kept."""
    axes = axes_or_new(None, 7.4, 4.0)

    account_of = functools.cache(functools.partial(mlp_ledger, tokens, width, hidden))

    def numbers(keep, layers):
        account = account_of(keep, layers)
        held, peak = bytes_text(account.held_bytes), bytes_text(account.peak_bytes)
        moments = [account.owners_at(moment) for moment in range(len(account.moments))]
        return {
            "stacks": [[sizes.get(owner, 0) for sizes in moments] for owner in OWNERS],
            "held": account.held_bytes,
            "peak": account.peak_bytes,
            "peak_at": account.peak_at,
            "operator": account.moments[account.peak_at],
            "forward": account.forward,
            "title": f"{layers} layers, {keep} kept",
            "words": f"Held between forward and backward: {held}, the result among it. At the peak: {peak}.",
        }

    def move(keep, layers):
        seen = numbers(keep, layers)
        axes.clear()
        memory_by_owner(account_of(keep, layers), axes, title=seen["title"], looks=OWNERS)
        return seen["words"]

    def data():
        made = {keep: [account_of(keep, count) for count in range(1, MOST_LAYERS + 1)] for keep in KEPT}
        names = sorted({name for accounts in made.values() for account in accounts for name in account.moments})
        return {
            "owners": list(OWNERS),
            "operators": names,
            "accounts": {keep: [_plain(account, names) for account in accounts] for keep, accounts in made.items()},
        }

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
        "layers": slider("layers", 1, MOST_LAYERS, layers),
    }
    alt = (
        "Memory of a stack of MLPs over the operators of forward and backward for three policies: it climbs through "
        "forward and falls through backward; with everything kept it climbs highest, with only inputs kept it hardly "
        "climbs, and every layer's backward makes a short peak of its own."
    )
    return Explorer(axes, controls, move, still, alt, Live("memory", numbers, data))


def _plain(account, names: list[str]) -> dict:
    """A ledger in numbers that JSON holds: operators and owners by their places in the lists."""
    return {
        "forward": account.forward,
        "moments": [names.index(name) for name in account.moments],
        "blocks": [[OWNERS.index(b.owner), b.bytes, b.born, b.freed] for b in account.blocks],
    }
