"""A table that a notebook shows and a program can read."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class View:
    """Rows under a title. `rows` are named tuples; their fields are the columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Any, ...]
    code: tuple[str, ...] = ()  # columns shown in a fixed-width font, their line breaks kept
    note: str = ""

    def __iter__(self) -> Iterator:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]

    def _cells(self) -> list[list[str]]:
        return [[_text(value) for value in row] for row in self.rows]

    def __str__(self) -> str:
        lines = [self.title]
        if self.rows:
            lines += _aligned([list(self.columns), *self._cells()])
        return "\n".join([*lines, *filter(None, [self.note])])

    def _repr_html_(self) -> str:
        left = " style='text-align:left;vertical-align:top'"
        kept = " style='text-align:left;vertical-align:top;white-space:pre;font-family:monospace'"
        head = "".join(f"<th{left}>{html.escape(name)}</th>" for name in self.columns)
        longest = [max((len(row[i]) for row in self._cells()), default=0) for i in range(len(self.columns))]
        # a sentence beside a long line of code would otherwise be squeezed to a word a line
        words = [left.replace("'text", "'min-width:16em;text") if n > 40 else left for n in longest]
        styles = [kept if name in self.code else w for name, w in zip(self.columns, words, strict=True)]
        body = "".join(
            "<tr>" + "".join(f"<td{s}>{html.escape(t)}</td>" for s, t in zip(styles, row, strict=True)) + "</tr>"
            for row in self._cells()
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if self.rows else ""
        note = f"<p><small>{html.escape(self.note)}</small></p>" if self.note else ""
        return f"<p><b>{html.escape(self.title)}</b></p>{table}{note}"


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side; a cell may have several lines."""
    split = [[cell.split("\n") for cell in row] for row in table]
    widths = [max(len(line) for row in split for line in row[i]) for i in range(len(table[0]))]
    lines = []
    for row in split:
        for n in range(max(len(cell) for cell in row)):
            parts = [(cell[n] if n < len(cell) else "").ljust(w) for cell, w in zip(row, widths, strict=True)]
            lines.append("  ".join(parts).rstrip())
    return lines


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "" if value is None else str(value)


def bytes_text(count: int | None) -> str:
    """12 B, 4.0 KiB, 19.3 MiB; a size that depends on a size is not known."""
    if count is None:
        return "depends on a size"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
