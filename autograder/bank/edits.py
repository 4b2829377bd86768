"""Submissions of the bank as edits of a right one: mistakes.diff, slow.diff and cheats.diff of an exercise.

    # of one_block
    ## base_two, caught by "an odd width": exp2 without log2(e).
    -    e = tl.exp(x - top)
    +    e = tl.exp2(x - top)

`# of NAME` says what the edits below it change: right/NAME.py, or an edit of the same file. `##` begins an edit: its
name, what catches it, the reason. Lines `NAME = value` may follow: what else a submission of the bank says about
itself, such as TIERS, or BEFORE, the cases that have to run before the one that catches it. Then come the lines before
(`-`) and after (`+`), and where the place would not be clear, lines that stay (` `). A `-` behind a `+` begins the next
change.

    @@            begins the next change too
    @@ softmax    the same, and the change lies in the function or class `softmax`
    -...          any lines up to the next line given; at the start or the end of a change, of that function

Blank lines do not count, neither here nor in the solution.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

REST = "..."
HEAD = re.compile(r'(?P<name>\w+)(?:, caught by "(?P<by>[^"]*)")?: (?P<reason>.+)')
NAMED = ast.FunctionDef | ast.ClassDef


class BadEdit(ValueError):
    """An edit that cannot be read or does not fit its solution. The message says which one, and what to do."""


@dataclass(frozen=True)
class Change:
    """Lines of the solution and what replaces them."""

    inside: str  # a function or class of the solution, or ""
    lines: tuple[tuple[str, str], ...]  # (one of " -+", the line)

    @property
    def before(self) -> list[str]:
        return [line for sign, line in self.lines if sign != "+"]

    @property
    def after(self) -> list[str]:
        return [line for sign, line in self.lines if sign != "-"]


@dataclass(frozen=True)
class Edit:
    file: Path
    line: int  # of the file
    of: str  # the solution, or the edit, that it changes
    name: str
    caught_by: str
    reason: str
    says: dict[str, Any] = field(hash=False)  # what else it says about itself
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        return f"{self.file.parent.name}/{self.file.name}:{self.line}, {self.name}"


# ------------------------------------------------------------------------------------------------- reading


@lru_cache(maxsize=256)
def read(file: Path) -> dict[str, Edit]:
    """The edits of a file by their names, in order."""
    edits: dict[str, Edit] = {}
    of, part = "", []
    for number, line in enumerate([*file.read_text().splitlines(), "# of"], start=1):
        if line.startswith("# of") or (line.startswith("##") and not (part and part[-1].startswith("##"))):
            if part:
                edit = _edit(file, number - len(part), of, part)
                if edit.name in edits:
                    raise BadEdit(f"{edit}: an edit of this name stands at line {edits[edit.name].line} already.")
                edits[edit.name] = edit
            part = []
        if line.startswith("# of"):
            of = line.removeprefix("# of").strip()
        elif part or line.startswith("##"):
            part.append(line)
        elif line.strip():
            raise BadEdit(f"{file.parent.name}/{file.name}:{number}: {line!r} belongs to no edit: `## name: reason`.")
    return edits


def _edit(file: Path, number: int, of: str, part: list[str]) -> Edit:
    where = f"{file.parent.name}/{file.name}:{number}"
    head = [line.removeprefix("##").strip() for line in part if line.startswith("##")]
    matched = HEAD.fullmatch(" ".join(head))
    if not matched or not of:
        raise BadEdit(f'{where}: expected `# of SOLUTION` and then `## name, caught by "a case": the reason.`')
    says, used = _constants(part[len(head) :], where)
    changes = tuple(_changes(part[len(head) + used :], where))
    return Edit(file, number, of, matched["name"], matched["by"] or "", matched["reason"], says, changes)


def _constants(lines: Sequence[str], where: str) -> tuple[dict[str, Any], int]:
    """The lines `NAME = value` that come first, as values, and how many lines they are."""
    says, used = {}, 0
    while used < len(lines) and re.match(r"[A-Z_]+ = ", lines[used]):
        name, _, value = lines[used].partition(" = ")
        try:
            says[name] = ast.literal_eval(value)
        except (SyntaxError, ValueError) as error:
            raise BadEdit(f"{where}: {value!r} is no value that can be read without running it.") from error
        used += 1
    return says, used


def _changes(lines: Sequence[str], where: str) -> Iterator[Change]:
    inside, part = "", []
    for line in [*lines, "@@"]:
        sign = line[:1]
        if part and (line.startswith("@@") or (sign == "-" and part[-1][0] == "+")):
            yield Change(inside, tuple(part))
            inside, part = "", []
        if line.startswith("@@"):
            inside = line.removeprefix("@@").strip()
        elif not line[1:].strip():
            continue
        elif sign in ("-", "+", " "):
            part.append((sign, line[1:].rstrip()))
        else:
            raise BadEdit(f"{where}: {line!r} begins with none of `-`, `+`, a blank and `@@`.")


# ------------------------------------------------------------------------------------------------- expanding


@lru_cache(maxsize=4096)
def expand(edit: Edit) -> str:
    """The submission as a file of its own: what it says about itself, and the solution with the changes made."""
    try:
        lines = _spaced(_changed(edit))
    except SyntaxError as error:
        raise BadEdit(f"{edit}: what comes of it is no Python, at {(error.text or '').strip()!r}.") from error
    says = [f"{name} = {value!r}" for name, value in edit.says.items()]
    return "\n".join([f'"""{edit.reason}"""', *says, "", *lines, ""])


def _changed(edit: Edit) -> tuple[str, ...]:
    base = _base(edit)
    found = sorted(((*_place(edit, change, base), change) for change in edit.changes), key=lambda one: one[:2])
    lines, at = [], 0
    for start, end, change in found:
        if start < at:
            raise BadEdit(f"{edit}: two of its changes are about the same line, {base[start]!r}.")
        if REST in (line for sign, line in change.lines if sign != "-"):
            raise BadEdit(f"{edit}: only lines that go can be left out, as `-...`.")
        lines += [*base[at:start], *change.after]
        at = end
    return (*lines, *base[at:])


def _base(edit: Edit) -> tuple[str, ...]:
    """The lines that the edit changes."""
    solution = edit.file.parent / "right" / f"{edit.of}.py"
    if solution.is_file():
        return _body(solution)
    if edit.of == edit.name or edit.of not in read(edit.file):
        raise BadEdit(f"{edit}: there is neither right/{edit.of}.py nor an edit {edit.of} in this file.")
    return _changed(read(edit.file)[edit.of])


@lru_cache(maxsize=64)
def _body(solution: Path) -> tuple[str, ...]:
    """A solution without its docstring and blank lines."""
    source = solution.read_text()
    tree = ast.parse(source)
    first = tree.body[0].end_lineno if ast.get_docstring(tree) is not None else 0
    return tuple(line.rstrip() for line in source.splitlines()[first:] if line.strip())


def _place(edit: Edit, change: Change, base: tuple[str, ...]) -> tuple[int, int]:
    """Where the change applies: from which line, and up to which."""
    low, high = _region(edit, change.inside, base)
    ends = {start: _end(change.before, base, start, low, high) for start in range(low, high)}
    places = [(start, end) for start, end in ends.items() if end is not None]
    if len(places) == 1:
        return places[0]
    shown = next((line.strip() for line in change.before if line != REST), "")
    where = f"{edit.of}, {change.inside}" if change.inside else edit.of
    if not change.before:
        raise BadEdit(f"{edit}: where do its lines go? Add a line that stays, the one before or behind them.")
    if not places:
        raise BadEdit(f"{edit}: its lines from {shown!r} do not stand in {where}. Copy them as they are there.")
    raise BadEdit(
        f"{edit}: its lines from {shown!r} stand {len(places)} times in {where}. Add the line above them as one that "
        "stays, or say `@@ function`."
    )


def _region(edit: Edit, inside: str, base: tuple[str, ...]) -> tuple[int, int]:
    if not inside:
        return 0, len(base)
    spans = _spans(base).get(inside, [])
    if len(spans) != 1:
        raise BadEdit(f"{edit}: {edit.of} has {len(spans)} functions or classes `{inside}`; one is needed.")
    return spans[0]


@lru_cache(maxsize=256)
def _spans(base: tuple[str, ...]) -> dict[str, list[tuple[int, int]]]:
    """From and up to which line everything of this name goes, decorators included."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for node in ast.walk(ast.parse("\n".join(base))):
        if isinstance(node, NAMED):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            spans.setdefault(node.name, []).append((first - 1, node.end_lineno))
    return spans


def _end(wanted: Sequence[str], lines: Sequence[str], start: int, low: int, high: int) -> int | None:
    """Where a match that begins at `start` ends, or None."""
    at = start
    for number, line in enumerate(wanted):
        if line != REST:
            if at >= high or lines[at] != line:
                return None
            at += 1
        elif number == 0 and start != low:
            return None
        elif number == len(wanted) - 1:
            at = high
        else:
            at = next((n for n in range(at, high) if lines[n] == wanted[number + 1]), high)
    return at


def _spaced(lines: Sequence[str]) -> list[str]:
    """Two blank lines around the functions and classes at the left again."""
    spaced = list(lines)
    body = ast.parse("\n".join(lines)).body
    for before, node in reversed(list(pairwise(body))):
        if isinstance(before, NAMED) or isinstance(node, NAMED):
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
            spaced[first - 1 : first - 1] = ["", ""]
    return spaced
