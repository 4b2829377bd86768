"""A submitted notebook -> the student's code, and nothing else.

The release is the skeleton. From it come the setup cells and the order; from the submission come the text of the
solution cells and the student's own cells. Demonstration and check cells are never run, so it does not matter
whether they were edited, deleted, renamed, doubled or turned into something else.
"""

from __future__ import annotations

import ast
import copy
import functools
import io
import json
import re
import tokenize
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from symtable import SymbolTable, symtable

from IPython.core.inputtransformer2 import TransformerManager

from autograder.inside.own_time import OVERDUE
from autograder.judging.names import ONLY_DEMONSTRATED, names_in
from autograder.judging.outcome import NOT_WRITTEN
from autograder.referee.source import parsed

SETUP = "setup"  # the tag of cells that are always taken from the release
OWN = "speed_of_light_own"  # in the metadata of a repaired notebook: the student added this cell
WRITTEN_ABOVE = "*Written into the lesson's cell above this one:*"
WATCHING = ("time", "timeit", "capture", "prun")
CODE = 150_000  # characters of code that are read; the longest lesson has two fifths of that, solved
# of what is no code, in a cell and in all: what shows markdown takes a time that grows with the square of its length
TEXT, TEXTS = 10_000, 100_000
CELLS = 1000  # of a submission that are read; the longest lesson has 177
MAGIC = re.compile(r"^([ \t]*+)(?:[%!?].*|[\w.]++\?\??|(\w[^\n=]*+=[ \t]*+)[%!].*)$", re.MULTILINE)
PATIENT = 1_000_000  # characters times lines that may be a magic: IPython reads all again for each of them
LINE = 2_000  # characters of the longest line that IPython is given
CHECKED = re.compile(r"""\bcheck\(\s*["'][\w.]+["']\s*,\s*(\w+)""")  # in a check cell, whose text is the release's
# By these cells can bind a name that stands in a string, as names and as attributes.
BINDING = set("eval exec globals setattr vars".split())
INNER = set("__builtins__ __dict__ __globals__ __setattr__ f_globals f_locals".split())
LOOKS_UP = BINDING | INNER | set("__import__ __main__ get_ipython getmodule import_module locals modules".split())
MERGE = re.compile(r"^(?:<{7}|={7}|>{7})(?: |$)", re.MULTILINE)  # what a merge that was not finished leaves in a file
# Controls: a terminal obeys some, and others turn the order of a line around, so that code reads as what it is not.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
BLANK = re.compile(r"(?:[ \t\r\f\v]*+\n){100,}")  # more of them tell nobody anything, and colouring code takes seconds


@dataclass(frozen=True)
class Cell:
    """One piece of code to run, under a name that tracebacks show."""

    name: str  # "setup 1", a grade_id, or "your cell 3"
    source: str


@dataclass(frozen=True)
class Submission:
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()  # what was repaired, in words for student and instructor
    demonstrated: frozenset[str] = field(default_factory=frozenset)  # names defined in demonstration cells only
    checked: Mapping[str, str] = field(default_factory=dict)  # entry point -> the last cell above its check
    untouched: frozenset[str] = field(default_factory=frozenset)  # entry points that nobody has begun to write

    def as_data(self) -> dict:
        """What JSON can hold. `of_data` makes a submission of it again."""
        return {
            "cells": [[cell.name, cell.source] for cell in self.cells],
            "notes": list(self.notes),
            "demonstrated": sorted(self.demonstrated),
            "checked": dict(self.checked),
            "untouched": sorted(self.untouched),
        }

    @classmethod
    def of_data(cls, data: Mapping) -> Submission:
        cells = tuple(Cell(name, source) for name, source in data["cells"])
        demonstrated, untouched = (frozenset(data[name]) for name in ("demonstrated", "untouched"))
        return cls(cells, tuple(data["notes"]), demonstrated, data["checked"], untouched)

    def settled(self, entry: str) -> str:
        """The last of the cells that decide what the names of an exercise mean: those above its check, and those down
        to the last one that defines its entry point. What a later cell binds again was another value when the
        notebook, run from top to bottom, came to that check."""
        last = self.checked.get(entry, self.cells[-1].name if self.cells else "")
        deciding = [cell.name for cell in self.cells if cell.name == last or entry in _defines(cell.source)]
        return deciding[-1] if deciding else ""

    def missing(self, entry: str, troubles: Sequence[Sequence[str]] = ()) -> str:
        """Why an exercise has no function to judge. troubles: name, error and line of each cell that raised. A setup
        cell is ours, and raises where it needs what an exercise hides: that is told where no other cell raised."""
        why = f"`{entry}` is not defined by any solution cell or cell of your own."
        if entry in self.demonstrated:
            why = (
                f"`{entry}` is defined only in a demonstration cell, and those are not part of a submission. "
                "Move it to the solution cell or to a cell of your own."
            )
        theirs = [one for one in troubles if not one[0].startswith(f"{SETUP} ")]
        return " ".join([why, *map(in_words, theirs or troubles)])

    def explained(self, error: str, troubles: Sequence[Sequence[str]]) -> str:
        """What a call raised, and, where it did not find a name, the cell that would have bound that and raised."""
        name = re.match(r"NameError: (?:global )?name '(\w+)' is not defined", error)
        binding = {cell.name for cell in self.cells if name[1] in _defines(cell.source)} if name else ()
        return " ".join([error, *(f"[{in_words(one)}]" for one in troubles if one[0] in binding)])


def in_words(trouble: Sequence[str]) -> str:
    """What became of a cell that raised."""
    name, error, where = trouble
    return f"The cell {name} raised {error} ({where})." if where else f"The cell {name} raised {error}."


def endless(trouble: Sequence[str]) -> str:
    """Of a cell that waited or went on for ever, which is told whatever it cost; "" of any other that raised."""
    name, error, where = (" ".join(part.split()) for part in trouble)
    at = f" at {where}" if where else ""
    if error.endswith(OVERDUE):
        return f"The cell {name} did not end and was stopped{at}. What stands below that in the cell did not run."
    if error.startswith("EOFError: EOF when reading"):
        return f"The cell {name} asks for input{at}, and nobody answers where it is graded. It was stopped there."
    return ""


def extract(release: Mapping, submitted: Mapping) -> Submission:
    """Both are notebooks as JSON gives them (nbformat 4)."""
    return taken(release, submitted)[1]


def taken(release: Mapping, submitted: Mapping) -> tuple[dict, Submission]:
    """The repaired notebook as people may see it, and what is run of it."""
    repaired, notes = repair(release, submitted)
    ids = {c.get("id") for c in release["cells"] if _part(c) == "demonstration"}
    changed = [cell for cell in _short_enough(submitted["cells"], []) if cell.get("id") in ids]
    shown = [{**cell, "source": visible(_text(cell))} for cell in repaired["cells"]]
    found = code_of(repaired, (), changed)
    notes += _misplaced(release, repaired, changed)
    notes += [
        f"The cell {cell.name} holds the marks of a merge that was not finished, so it is no Python: keep one side of "
        "each and remove the marks."
        for cell in found.cells
        if MERGE.search(cell.source) and not parsed(cell.source)
    ]
    notes += _only_demonstrated(release, found)
    return {**repaired, "cells": shown}, replace(found, notes=tuple(notes), untouched=_untouched(release, found))


def release_of_cells(cells: Sequence[Mapping], releases: Iterable[Path]) -> Path | None:
    """The first of these released notebooks of which most cells are there."""
    ids, texts = {cell.get("id") for cell in cells}, {_bare(_text(cell)) for cell in cells}
    for path in releases:
        known = json.loads(path.read_text(encoding="utf-8"))["cells"]
        # by its text too: an editor may have dropped the ids
        if 2 * sum(cell.get("id") in ids or _bare(_text(cell)) in texts for cell in known) > len(known):
            return path
    return None


def _untouched(release: Mapping, found: Submission) -> frozenset[str]:
    """Entry points whose cell is still the stub, while nothing that the student wrote can change what it defines."""
    empty = code_of(release).cells
    names = _meant_in([cell.source for cell in found.cells if cell not in empty])
    stubs = [(cell, _defines(cell.source)) for cell in empty if NOT_WRITTEN in cell.source]
    return frozenset(
        entry
        for entry in found.checked
        if any(entry in defined for _, defined in stubs)
        and all(cell in found.cells and not defined & names for cell, defined in stubs if entry in defined)
    )


def _meant_in(sources: Sequence[str]) -> set[str]:
    """Names of the notebook that these cells bind, or hand on to what could change the thing. A local variable and an
    attribute are other things, and a call leaves what it calls as it was. A cell that is no Python may mean all of its
    words, and where names may be looked up, those of all cells may be meant."""
    names: set[str] = set()
    for source in sources:
        try:
            tree, table = ast.parse(source), symtable(source, "<cell>", "exec")
            tokens = tokenize.generate_tokens(io.StringIO(source).readline)
            looks_up = LOOKS_UP & {one.string for one in tokens if one.type == tokenize.NAME}
        except (RecursionError, MemoryError, tokenize.TokenError):  # where it is run, there may be more stack
            looks_up = LOOKS_UP
        except (SyntaxError, ValueError):
            names |= _words(source)
            continue
        if looks_up:
            return _words(*sources)
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called}
        names |= _of_notebook(table, read)
    return names


def _words(*sources: str) -> set[str]:
    return set(re.findall(r"\w+", "\n".join(sources)))


def _of_notebook(table: SymbolTable, read: Container[str]) -> set[str]:
    """Of the names in this block and those within: the ones that the notebook shares, where they are bound or read."""
    shared = [one for one in table.get_symbols() if table.get_type() == "module" or one.is_global()]
    bound = (one.is_assigned() or one.is_imported() or one.is_declared_global() for one in shared)
    mine = {one.get_name() for one, binds in zip(shared, bound, strict=True) if binds or one.get_name() in read}
    return mine.union(*(_of_notebook(child, read) for child in table.get_children()))


def _misplaced(release: Mapping, repaired: Mapping, changed: Iterable[Mapping]) -> list[str]:
    """What a student defined in a demonstration cell while the solution cell for it is still the empty one."""
    empty = {_named(cell): _text(cell) for cell in release["cells"] if _part(cell) == "solution"}
    kept = [cell for cell in repaired["cells"] if empty.get(_named(cell)) == _text(cell) and _named(cell)]
    asked = set().union(*(_defines(_text(cell)) for cell in kept))
    there = set().union(*(_defines(_text(c)) for c in release["cells"] if _part(c) == "demonstration"))
    mine = set().union(*(_defines(_text(c)) for c in repaired["cells"] if _part(c) == "own"))
    moved = set().union(*(_defines(_text(cell)) for cell in changed)) & asked - there - mine
    return [
        f"`{name}` is defined in a demonstration cell, and those are not part of a submission; its solution cell is "
        "still the empty one. Move it there, or to a cell of your own."
        for name in sorted(moved)
    ]


def _only_demonstrated(release: Mapping, found: Submission) -> list[str]:
    """Names that a solution takes from a demonstration cell. Cells of one's own may be about anything."""
    empty = {cell.name: cell.source for cell in code_of(release).cells}
    bound = set().union(*(names_in(cell.source)[0] for cell in found.cells))
    shown = set().union(*(names_in(as_python(_text(c)))[0] for c in release["cells"] if _part(c) == "demonstration"))
    taken = {
        name: cell.name
        for cell in found.cells
        if empty.get(cell.name, cell.source) != cell.source
        for name in sorted(names_in(cell.source)[1] & shown - bound)
    }
    return [f"`{name}`, used in the cell {cell}, {ONLY_DEMONSTRATED}" for name, cell in taken.items()]


def code_of(repaired: Mapping, notes: Sequence[str] = (), demonstrations: Iterable[Mapping] = ()) -> Submission:
    """What is run of a notebook that `repair` made. demonstrations: cells that are not run, beside those in it."""
    setups = mine = 0
    cells: list[Cell] = []
    checked: dict[str, str] = {}
    for cell in repaired["cells"]:
        part = _part(cell)
        if part == "setup":
            setups += 1
            cells.append(Cell(f"{SETUP} {setups}", as_python(_text(cell))))
        elif part == "solution":
            cells.append(Cell(_marks(cell)["grade_id"], as_python(_text(cell))))
        elif part == "own":
            mine += 1
            cells.append(Cell(f"your cell {mine}", as_python(_text(cell))))
        elif part == "check":
            checked |= dict.fromkeys(CHECKED.findall(_text(cell)), cells[-1].name if cells else "")
    shown = [*(c for c in repaired["cells"] if _part(c) == "demonstration"), *demonstrations]
    defined = set().union(*(_defines(cell.source) for cell in cells))
    demonstrated = set().union(*(_defines(_text(cell)) for cell in shown)) - defined
    return Submission(tuple(cells), tuple(notes), frozenset(demonstrated), checked)


def repair(release: Mapping, submitted: Mapping) -> tuple[dict, list[str]]:
    """The release with the student's answers and own cells in it, and what had to be put right."""
    notes: list[str] = []
    ours = {_bare(_text(cell)) for cell in release["cells"] if _part(cell) == "text"}
    kept = _short_enough(submitted["cells"], notes, ours)
    answers, own, there = _sorted_out(release["cells"], kept, notes)
    texts = {cell.get("id"): _text(cell) for cell in kept}
    cells, waiting = [], own.get(None, [])
    for cell in release["cells"]:
        cell = copy.deepcopy(dict(cell))
        grade_id = _marks(cell).get("grade_id")
        place = grade_id or cell.get("id")
        if place in there:  # own cells come after those that the student deleted: an empty answer would undo them
            cells, waiting = [*cells, *waiting], []
        if grade_id in answers:
            cell["source"] = answers[grade_id]
        elif _marks(cell).get("solution"):
            notes.append(f"The cell {grade_id} is missing; the empty one of the release stands in.")
        came = _bare(texts.get(cell.get("id"), ""))
        if _part(cell) == "setup" and came and came != _bare(_text(cell)):
            notes.append("A setup cell was changed; that of the release ran. Put what you add into a cell of your own.")
        cells.append(cell)
        waiting = [*waiting, *own.get(place, [])]
    return {**release, "cells": [*cells, *waiting]}, notes


def _short_enough(cells: Sequence[Mapping], notes: list[str], ours: Container[str] = ()) -> list[Mapping]:
    """Without what makes the whole too long: it would be read, and shown, outside of any sandbox.

    ours: the lesson's own texts, without blanks; a notebook that another editor saved may have lost its ids.
    """
    code, texts, kept = CODE, TEXTS, []
    if len(cells) > CELLS:
        notes.append(f"Of {len(cells):,} cells the first {CELLS:,} were read.")
    for number, cell in enumerate(cells[:CELLS], 1):
        text = _text(cell)
        if cell["cell_type"] == "code":
            if len(text) > code:
                notes.append(f"Cell {number} was not read: with it, there are more than {CODE:,} characters of code.")
                continue
            code -= len(text)
        elif _bare(text) not in ours:
            most = min(TEXT, texts)
            if len(text) > most:
                notes.append(
                    f"Of the text in cell {number} {most:,} characters were read: {TEXT:,} a cell and {TEXTS:,} in all "
                    "are."
                )
                cell = {**cell, "source": text[:most]}
            texts -= min(len(text), most)
            if "attachment:" in text:
                notes.append(f"A picture in cell {number} is not shown here; it is in the notebook that was handed in.")
                cell = {**cell, "source": _text(cell).replace("attachment:", "attached:")}
        kept.append(cell)
    return kept


def _sorted_out(skeleton, submitted, notes) -> tuple[dict[str, str], dict[str | None, list[dict]], set[str]]:
    """(grade_id -> the student's text, the cell before -> the student's own cells that follow it, which were there)."""
    marked = {_marks(c)["grade_id"]: c for c in skeleton if "grade_id" in _marks(c)}
    ids = {c.get("id"): c for c in skeleton}
    at_home = {_named(c) for c in submitted if _named(c) and _named(c) == _named(ids.get(c.get("id"), {}))}
    sources = {_bare(_text(c)) for c in skeleton}
    copied = {_bare(_text(c)) for c in skeleton if _part(c) == "demonstration"}
    if 2 * len(ids.keys() & {c.get("id") for c in submitted}) < len(ids):
        copied = set()  # an editor dropped the ids: then this is the lesson's own cell, and no copy
    answers: dict[str, str] = {}
    own: dict[str | None, list[dict]] = {}
    there: set[str] = set()
    before = None
    for cell in submitted:
        grade_id, known = _named(cell), ids.get(cell.get("id"))
        lost = grade_id not in marked or (grade_id in at_home and known and _named(known) != grade_id)
        if lost and known and _marks(known).get("solution"):
            grade_id = _named(known)
            if grade_id in answers:
                continue
            notes.append(f"The cell {grade_id} had lost its name; it was recognised by its id.")
        if grade_id in marked:
            if _marks(marked[grade_id]).get("solution"):
                part = _take(answers, grade_id, cell, marked[grade_id], notes)
                if part:
                    own.setdefault(_before(skeleton, grade_id), []).append(_own(part, "code", own))
            before = grade_id
            there.add(before)
        elif known:
            before = _marks(known).get("grade_id") or known.get("id")
            there.add(before)
            if _part(known) == "text" and (added := _added(_text(known), _text(cell))):
                notes.append("Text was written into a cell of the lesson; it stands in a cell of its own below that.")
                own.setdefault(before, []).append(_own(f"{WRITTEN_ABOVE}\n\n{added}", "markdown", own))
        elif _text(cell).strip() and (_bare(_text(cell)) not in sources or _bare(_text(cell)) in copied):
            kind = cell["cell_type"] if cell["cell_type"] in ("code", "markdown") else "raw"
            own.setdefault(before, []).append(_own(_text(cell), kind, own))
    return answers, own, there


def _added(text: str, came: str) -> str:
    """What stands in a text of the lesson beside all of its lines, or in a question's place: somebody's answer, maybe.
    A text that lacks some of its lines is of another edition."""
    ours, theirs = (Counter(filter(None, map(_bare, one.splitlines()))) for one in (text, came))
    if ours <= theirs or ("### Question" in text and not ours & theirs):
        return "\n".join(line for line in came.splitlines() if _bare(line) not in ours).strip()
    return ""


def _own(text: str, kind: str, own: Mapping[str | None, list]) -> dict:
    made = {"cell_type": kind, "id": f"own-{sum(map(len, own.values())) + 1}", "source": text, "metadata": {OWN: True}}
    return made | ({"outputs": [], "execution_count": None} if kind == "code" else {})


def _before(skeleton: Sequence[Mapping], grade_id: str) -> str | None:
    """The cell of the release before this one."""
    places = [_named(cell) or cell.get("id") for cell in skeleton]
    at = places.index(grade_id)
    return places[at - 1] if at else None


def _take(answers: dict[str, str], grade_id: str, cell: Mapping, original: Mapping, notes: list[str]) -> str:
    """An answer to a cell of the release; of several, the last one that is not the empty one of the release. A code
    cell before it may be its first half, for a cell that was split keeps its name: it is returned, to run before."""
    text, empty = _text(cell), _bare(_text(original))
    if cell["cell_type"] != original["cell_type"]:
        notes.append(f"The cell {grade_id} was turned into another kind of cell; its text was read all the same.")
    earlier = answers.get(grade_id)
    if earlier is not None:
        notes.append(f"The cell {grade_id} is there twice; the last one counts, and those before it run before it.")
        if _bare(text) == empty:
            return ""
    answers[grade_id] = text
    return earlier if earlier and _bare(earlier) != empty and original["cell_type"] == "code" else ""


def _part(cell: Mapping) -> str:
    """What a code cell of a release or a repaired notebook is for."""
    marks, metadata = _marks(cell), cell.get("metadata", {})
    if cell["cell_type"] != "code":
        return "text"
    if SETUP in metadata.get("tags", []):
        return "setup"
    if metadata.get(OWN):
        return "own"
    return "solution" if marks.get("solution") else "check" if marks.get("grade") else "demonstration"


TIMED = re.compile(r"^([ \t]*)%time[ \t]+(?=[^\s-])", re.MULTILINE)  # a line that is run, with its time told
DEEP = 20  # characters that stand for magics of a cell, one above the other: ten of them
AUTOCALL = (",", ";", "/")  # `, f a b` calls f with two strings
TWICE = {ord(sign): sign * 2 for sign in "%!?"}


@functools.lru_cache(maxsize=256)
def as_python(source: str) -> str:
    """The cell as plain Python. Magics become calls of `get_ipython()`, which the worker answers with nothing.

    A magic that only watches (`%%time`, and `%time` in a line) leaves what it watches to be run; any other cell magic
    (`%%bash`) takes its body along.
    """
    head = ""
    while source.lstrip().startswith("%%"):
        first, _, source = source.lstrip().partition("\n")
        if "".join(first[2:].split()[:1]) not in WATCHING or len(head) > DEEP:
            return "pass"
        head += "#\n"
    return head + _without_magics(source)


def _without_magics(source: str) -> str:
    if not parsed(source):
        source = TIMED.sub(r"\1", source)
    if parsed(source):
        return source
    lines = source.splitlines()
    maybe = sum(len(line) < len(line.translate(TWICE)) or line.lstrip()[:1] in AUTOCALL for line in lines)
    if maybe * len(source) > PATIENT or max(map(len, lines), default=0) > LINE:
        return MAGIC.sub(lambda line: f"{line[1]}{line[2] or ''}{'None' if line[2] else 'pass'}", source)
    try:
        return TransformerManager().transform_cell(source)
    except Exception:  # what it cannot read, no Python can: the worker says so
        return source


def _defines(source: str) -> set[str]:
    """Names that a cell binds at its top level."""
    tree = parsed(as_python(source))
    body = tree.body if tree else []
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in body:
        if isinstance(node, ast.Assign):
            names |= {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return names


def _marks(cell: Mapping) -> Mapping:
    """What nbgrader wrote on a cell; where somebody else wrote there, nothing."""
    marks = cell.get("metadata", {}).get("nbgrader", {})
    return marks if isinstance(marks, Mapping) and isinstance(marks.get("grade_id", ""), str) else {}


def _named(cell: Mapping) -> str | None:
    return _marks(cell).get("grade_id")


def _text(cell: Mapping) -> str:
    source = cell.get("source", "")
    return BLANK.sub("\n" * 100, writable(source if isinstance(source, str) else "".join(source)))


def writable(text: str) -> str:
    """The text without halves of letters (lone surrogates): JSON can carry them, and no file can hold them."""
    return text.encode(errors="replace").decode()


def visible(text: str) -> str:
    """The text as terminals and pages may show it: a control is a question mark in a box."""
    return CONTROLS.sub("\N{REPLACEMENT CHARACTER}", writable(text).replace("\r\n", "\n"))


def _bare(source: str) -> str:
    return re.sub(r"\s+", "", source)
