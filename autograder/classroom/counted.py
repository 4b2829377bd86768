"""How many of what, in words."""

from __future__ import annotations


def many(number: float, what: str) -> str:
    """The first word of `what` is the one that is counted: "1 cell of your own", "2 cells of your own"."""
    first, *rest = what.split(" ", 1)
    return " ".join([f"{number:g}", first + "s" * (number != 1), *rest])
