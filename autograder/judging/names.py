"""Names of a cell, as a check in a notebook and as grading read them."""

from __future__ import annotations

import symtable

ONLY_DEMONSTRATED = (
    "is defined only in a demonstration cell, and those are not part of a submission. Define it in the solution cell "
    "or in a cell of your own."
)


def names_in(source: str) -> tuple[set[str], set[str]]:
    """Names that a cell binds at its top level, imports among them, and those that it asks the notebook for."""
    try:
        todo = [top := symtable.symtable(source, "<cell>", "exec")]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set(), set()
    bound = {one.get_name() for one in top.get_symbols() if one.is_assigned() or one.is_imported()}
    asked: set[str] = set()
    while todo:
        table = todo.pop()
        todo += table.get_children()
        read = (one for one in table.get_symbols() if one.is_referenced())
        asked |= {one.get_name() for one in read if table is top or one.is_global()}
    return bound, asked
