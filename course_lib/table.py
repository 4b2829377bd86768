"""A table: data in, HTML in a notebook, aligned columns of text everywhere else.

    Table(("length", "time", "memory"), [(1024, "0.2 ms", bytes_text(2**20))], note="time: median of 20 calls")

A column whose cells are all numbers, with or without a unit, is aligned right. Numbers that are given as numbers are
written with three digits; a caller who wants others formats them.
"""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

__all__ = ["Table", "Tabular", "bytes_text", "number_text"]

_NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?\s?[%A-Za-zµ/]*")
_EMPTY = ("", "-")
_LONG = 40  # characters: a longer text wraps, and its column keeps room for some words


@dataclass(frozen=True, repr=False)
class Table:
    """Rows under the names of their columns. Without names, the first cell of a row is the row's name."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]  # strings, numbers and None; named tuples keep their fields for those who read them
    _: KW_ONLY
    caption: str = ""  # above the table
    note: str = ""  # below it, in small print; may have several lines
    code: Sequence[str] = ()  # columns in a fixed-width font, with their line breaks

    def __iter__(self) -> Iterator[Sequence[Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]

    def __str__(self) -> str:
        cells = self._cells()
        head = [list(self.columns)] if self.columns and cells else []
        lines = _side_by_side(head + cells, _numeric(cells))
        return "\n".join([*filter(None, [self.caption]), *lines, *filter(None, [self.note])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        caption, note = _lines_of_html(self.caption), _lines_of_html(self.note)
        small = f"<p><small>{note}</small></p>" if note else ""
        if not self.rows:
            return (f"<p><b>{caption}</b></p>" if caption else "") + small
        top = "<caption style='caption-side:top;text-align:left;font-weight:bold'>"
        caption = f"{top}{caption}</caption>" if caption else ""
        # A table that is wider than a phone scrolls by itself; the page around it does not.
        return f"<div style='overflow-x:auto'><table>{caption}{self._html_rows()}</table></div>{small}"

    def _html_rows(self) -> str:
        cells = self._cells()
        numeric = _numeric(cells)
        styles = [_style(i in numeric, self._is_code(i), [row[i] for row in cells]) for i in range(len(cells[0]))]
        # the name of a column may wrap where its numbers may not: it is often the longest text of the column
        sides = ["right" if i in numeric else "left" for i in range(len(styles))]
        names = "".join(_cell("th", f"text-align:{side}", name) for side, name in zip(sides, self.columns))
        head = f"<thead><tr>{names}</tr></thead>" if names else ""
        tags = ["td" if self.columns else "th", *["td"] * (len(styles) - 1)]
        body = "".join("<tr>" + "".join(map(_cell, tags, styles, row)) + "</tr>" for row in cells)
        return f"{head}<tbody>{body}</tbody>"

    def _cells(self) -> list[list[str]]:
        return [[number_text(value) for value in row] for row in self.rows]

    def _is_code(self, i: int) -> bool:
        return bool(self.columns) and self.columns[i] in self.code


class Tabular:
    """What is shown as the table that its `table()` makes."""

    def table(self) -> Table:
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def number_text(value: Any) -> str:
    """1,024 and 2.31 and 12,346: whole numbers in full, others with three digits. None is nothing to show."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def bytes_text(count: int) -> str:
    """12 B, 4 KiB, 2.21 MiB, 139.8 GiB."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def _numeric(cells: Sequence[Sequence[str]]) -> set[int]:
    """The columns that hold numbers and nothing else."""
    columns = list(zip(*cells))
    return {
        i
        for i, column in enumerate(columns)
        if any(text not in _EMPTY for text in column)
        and all(text in _EMPTY or _NUMBER.fullmatch(text) for text in column)
    }


def _side_by_side(rows: Sequence[Sequence[str]], numeric: set[int]) -> list[str]:
    """Columns two spaces apart; a cell may have several lines."""
    split = [[cell.split("\n") for cell in row] for row in rows]
    widths = [max(len(line) for cell in column for line in cell) for column in zip(*split)]
    lines = []
    for row in split:
        for n in range(max(map(len, row), default=0)):
            parts = [cell[n] if n < len(cell) else "" for cell in row]
            parts = [p.rjust(w) if i in numeric else p.ljust(w) for i, (p, w) in enumerate(zip(parts, widths))]
            lines.append("  ".join(parts).rstrip())
    return lines


def _style(is_number: bool, is_code: bool, texts: Sequence[str]) -> str:
    if is_number:
        return "text-align:right;white-space:nowrap"
    left = "text-align:left;vertical-align:top"
    if is_code:
        return f"{left};white-space:pre;font-family:monospace"
    # beside a long line of code, a sentence would otherwise be squeezed to a word a line
    return f"{left};min-width:12em" if max(map(len, texts)) > _LONG else left


def _cell(tag: str, style: str, text: str) -> str:
    return f"<{tag} style='{style}'>{html.escape(text)}</{tag}>"


def _lines_of_html(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")
