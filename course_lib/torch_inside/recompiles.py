"""What was compiled more than once, and the guard that failed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from course_lib.table import Table
from course_lib.torch_inside.events import RECOMPILED
from course_lib.torch_inside.guards import name_of
from course_lib.torch_inside.watching import Compilation, Watched, short

REASON = re.compile(r"\d+/\d+: ")
SIZE = re.compile(r"tensor '(.+)' size mismatch at index (\d+)\. expected (\d+), actual (\d+)")
STRIDE = re.compile(r"tensor '(.+)' stride mismatch at index (\d+)\. expected (\d+), actual (\d+)")
GRADIENT = re.compile(r"tensor '(.+)' requires_grad mismatch\. expected requires_grad=(\d)")
STATE = re.compile(r"GLOBAL_STATE changed: ([\w ]+)")
DTYPE = re.compile(r"tensor '(.+)' dtype mismatch\. expected (\S+), actual (\S+)")


class Recompile(NamedTuple):
    piece: str  # the function, or the rest of it
    compilation: str  # "0/1"
    failed: str  # the guard, in words
    earlier: str  # of which earlier compilation


def recompiles(seen: Watched) -> Table:
    """One row for every earlier compilation that was not used because one of its guards failed."""
    rows = [row for one in seen.compilations if one.again for row in _rows(one)]
    again = sum(one.again for one in seen.compilations)
    title = f"compiled again {again} time{'' if again == 1 else 's'}"
    columns = ("piece", "compilation", "guard that failed", "of compilation")
    return Table(columns, tuple(rows), caption=title)


def _rows(one: Compilation):
    piece = f"{one.piece} ({short(one.file)}:{one.line})"
    for reason in _reasons(one):
        earlier, _, text = reason.partition(": ")
        yield Recompile(piece, one.id, in_words(text or reason), earlier if text else "")


def _reasons(one: Compilation) -> list[str]:
    """Torch writes one reason as it is and several as a list in JSON."""
    found = [event.text for event in one.events if event.kind == RECOMPILED]
    if not found:
        return ["the reason was not recorded"]
    text = found[-1]
    try:
        several = json.loads(text)
    except ValueError:
        several = text
    several = [several] if isinstance(several, str) else several
    lines = [line for reason in several for line in str(reason).split("\n") if line.strip()]
    return list(_without_stacks(lines))


def _without_stacks(lines: list[str]) -> Iterator[str]:
    """torch prints the stack of the guard below some reasons; it ends where the next reason begins ("0/1: ...")."""
    stack = False
    for line in lines:
        stack = line.startswith("User stack trace") or (stack and not REASON.match(line))
        if not stack:
            yield line


def in_words(reason: str) -> str:
    """A failed guard as a sentence; what is not known stays as torch wrote it."""
    reason = reason.split("  # ")[0].strip()
    if found := SIZE.search(reason):
        return f"{name_of(found[1])}.size({found[2]}) was {found[3]}, is {found[4]}"
    if found := STRIDE.search(reason):
        return f"{name_of(found[1])}.stride({found[2]}) was {found[3]}, is {found[4]}"
    if found := GRADIENT.search(reason):
        before = "needed a gradient, needs none" if found[2] == "1" else "needed no gradient, needs one"
        return f"{name_of(found[1])} {before}"
    if found := DTYPE.search(reason):
        return f"{name_of(found[1])} was {found[2]}, is {found[3]}"
    if found := STATE.search(reason):
        return f"{found[1].strip().replace('_', ' ')} of the program changed"
    return name_of(reason)
