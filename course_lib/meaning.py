"""What code means, as a hash: whether numbers that were recorded with it still hold.

Every function, class and assignment of a file counts. Comments, docstrings, sentences for people, imports, the order of
definitions, and which file holds which of them do not: moving or rewording code makes no measurement old.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

__all__ = ["meaning", "meaning_in_order", "reached"]

ROOT = Path(__file__).resolve().parents[1]
OURS = ("autograder", "benchmarks", "course_lib")


def meaning(paths: Iterable[Path], sources: Iterable[str] = (), facts: Iterable[str] = ()) -> str:
    """12 hex digits that change when a definition in these files or sources changes, or one of the facts."""
    parts = {part for source in [*(path.read_text() for path in paths), *sources] for part in _definitions(source)}
    parts |= {_hash(fact) for fact in facts}
    return _hash("\n".join(sorted(parts)))[:12]


def meaning_in_order(sources: Iterable[str]) -> str:
    """12 hex digits for code that runs from top to bottom, as the cells of a lesson: every statement counts, in order.

    An import counts too, with the names it brings, but not from which file of the course it brings them.
    """
    trees = [ast.parse(source) for source in sources]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OURS:
            node.module = None
    return _hash("\n".join(map(_dumped, trees)))[:12]


def reached(path: Path, inside: Iterable[str]) -> list[Path]:
    """The files below the folders `inside` ("course_lib/kernels") that this file imports, directly or through others.

    An import inside a function counts as well.
    """
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        for module in _imported(waiting.pop()):
            relative = str(module.relative_to(ROOT))
            if module not in found and relative.startswith(tuple(f"{folder}/" for folder in inside)):
                found.add(module)
                waiting.append(module)
    return sorted(found)


@lru_cache(maxsize=512)
def _imported(path: Path) -> frozenset[Path]:
    """The files of the course that this file names in its imports: a package's own where it takes more than modules."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(*(_files_of(one.name) for one in node.names))
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for one in node.names:
                found |= _files_of(f"{node.module}.{one.name}") or _files_of(node.module)
    return frozenset(found)


def _files_of(module: str) -> set[Path]:
    place = ROOT / Path(*module.split("."))
    return {file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()}


def _definitions(source: str) -> frozenset[str]:
    """By parts between two blank lines, because submissions of an exercise share most of theirs.

    Where each part is Python by itself, the whole holds what they hold; a string with such lines in it is cut in two
    parts that are none.
    """
    try:
        return frozenset().union(*map(_in_part, re.split(r"\n{3,}(?=\S)", source)))
    except SyntaxError:
        return _in_part(source)


@lru_cache(maxsize=16384)
def _in_part(source: str) -> frozenset[str]:
    unsaid = (ast.Import, ast.ImportFrom, ast.Expr)
    kept = [one for one in ast.parse(source).body if not isinstance(one, unsaid) or _is_text(one)]
    return frozenset(_hash(_dumped(one)) for one in kept)


def _dumped(node: object) -> str:
    """As `ast.dump`, without what is said to people: docstrings and other sentences.

    Equal in every version of Python: fields that newer ones add are empty, and an f-string ends without the empty
    piece that 3.12 gives one inside another.
    """
    if isinstance(node, ast.AST):
        if _is_text(node):
            return "Pass()"
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_sentence(node.value):
            return "Constant(value='')"
        fields = [(name, getattr(node, name, None)) for name in node._fields]
        if isinstance(node, ast.JoinedStr):
            fields = [("values", [one for one in node.values if getattr(one, "value", None) != ""])]
        said = [f"{name}={_dumped(value)}" for name, value in fields if value not in (None, [])]
        return f"{type(node).__name__}({', '.join(said)})"
    return f"[{', '.join([_dumped(one) for one in node])}]" if isinstance(node, list) else repr(node)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_sentence(text: str) -> bool:
    return " " in text.strip() and text.rstrip().endswith((".", "?", ":", ";"))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
