"""Why a function did not become one graph: the line, the reason, what to do about it."""

from __future__ import annotations

import re
from typing import NamedTuple

from course_lib.table import Table
from course_lib.torch_inside.events import BREAK
from course_lib.torch_inside.watching import Watched, short

WHERE = re.compile(r'File "(.*)", line (\d+), in (.*)\n\s*(.*)')
HEADS = ("Graph Break Reason:", "Encountered graph break", "Failed to handle graph break", "Graph break")


class Break(NamedTuple):
    line: str  # "model.py:9"
    source: str
    reason: str
    remedy: str


# (what torch's message contains, the reason in our words, what to do). The first that fits.
KNOWN = (
    (
        "Data-dependent branching",
        "Python must know the value of a tensor to choose a branch, and a graph has no values yet",
        "compute both sides and choose with torch.where, or use torch.cond",
    ),
    (
        "Tensor.item()",
        "a number is read out of a tensor, and a graph has no values yet",
        "keep it a tensor: compare, index and multiply with a 0-dimensional tensor",
    ),
    (
        "Tensor.tolist()",
        "a list is read out of a tensor, and a graph has no values yet",
        "keep it a tensor; loop over sizes, not over values",
    ),
    (
        "builtin operator `print`",
        "printing is a side effect that no graph holds",
        "remove it, or print outside of the compiled function",
    ),
    (
        "numpy function",
        "NumPy computes this outside of torch, and torch has no version of it to trace",
        "write it with torch; simple NumPy functions are traced, this one is not",
    ),
    (
        "Dynamic shape operator",
        "the size of the result depends on the values of a tensor",
        "use a mask and torch.where, which keep the size, in place of nonzero and boolean indexing",
    ),
    (
        "torch._dynamo.graph_break()",
        "the code asks for it",
        "remove the call",
    ),
    (
        "torch.compiler.disable",
        "the function is marked as not to be compiled",
        "call it before or after the compiled function",
    ),
    (
        "logging.Logger",
        "logging is a side effect that no graph holds",
        "log outside of the compiled function",
    ),
    (
        "function marked as skipped",
        "the function belongs to Python or C, and Dynamo cannot look inside",
        "call it outside, or wrap it as a custom operator",
    ),
)


def breaks(seen: Watched) -> Table:
    """Every place where a graph ended, in the order in which Dynamo met them; one row a line of source.

    Dynamo traces a piece again after a break, and a piece that is compiled again breaks again: both would list the
    same place twice.
    """
    rows: dict[tuple[str, str], Break] = {}
    for event in seen.events:
        if event.kind == BREAK:
            row = _row(event.text)
            rows.setdefault((row.line, row.reason), row)
    found = tuple(rows.values())
    title = f"{len(found)} graph break{'' if len(found) == 1 else 's'}"
    columns = ("where", "source", "why the graph ends here", "what to do")
    note = "" if found or not seen.events else "The graphs hold everything that was called."
    return Table(columns, found, caption=title, note=note, code=("source",))


def _row(text: str) -> Break:
    places = WHERE.findall(text.partition("Traceback (most recent call last)")[0])
    path, line, _, source = places[-1] if places else ("", "", "", "")
    where = f"{short(path)}:{line}" if path else "not known"
    for sign, reason, remedy in KNOWN:
        if sign in text:
            return Break(where, source.strip(), reason, remedy)
    return Break(where, source.strip(), _torch_says(text), _hint(text))


def _torch_says(text: str) -> str:
    """Torch's own name of the reason and its explanation."""
    lines = [line.strip() for line in text.split("\n")]
    explained = next((line for line in lines if line.startswith("Explanation:")), "")
    at = next((i for i, line in enumerate(lines) if line.startswith("Graph Break Reason:")), None)
    if at is None:
        return explained.removeprefix("Explanation:").strip() or "torch gives no reason"
    name = lines[at].removeprefix("Graph Break Reason:").strip()
    if name.startswith(HEADS):  # a general head; the name stands on the next line
        name = next((line for line in lines[at + 1 :] if line), name)
    return f"{name}. {explained.removeprefix('Explanation:').strip()}".strip(". ") + "."


def _hint(text: str) -> str:
    hints = re.findall(r"^\s*Hint: (.*)$", text, re.MULTILINE)
    return hints[0] if hints else "torch gives no hint"
