"""What code means, as a hash: whether numbers that were recorded with it still hold.

Every function, class and assignment of a file counts. Comments, docstrings, sentences for people, imports, the order of
definitions, and which file holds which of them do not: moving or rewording code makes no measurement old.
"""

from __future__ import annotations

import ast
import hashlib
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
    return _hash("\n".join(_dumped(_Unplaced().visit(ast.parse(source))) for source in sources))[:12]


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
    """The files of the course that this file names in its imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    places = [ROOT / Path(*name.split(".")) for name in names]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return frozenset(file for file in files if file.is_file())


@lru_cache(maxsize=4096)
def _definitions(source: str) -> frozenset[str]:
    tree = _Silent().visit(ast.parse(source))
    kept = [one for one in tree.body if not isinstance(one, ast.Import | ast.ImportFrom | ast.Expr)]
    return frozenset(_hash(_dumped(one)) for one in kept)


def _dumped(node: object) -> str:
    """As `ast.dump`, and equal in every version of Python: fields that newer ones add are empty where older ones do."""
    if isinstance(node, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(node) if value not in (None, [])]
        return f"{type(node).__name__}({', '.join(f'{name}={_dumped(value)}' for name, value in fields)})"
    return f"[{', '.join(map(_dumped, node))}]" if isinstance(node, list) else repr(node)


class _Silent(ast.NodeTransformer):
    """Without what is said to people: docstrings and other sentences."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("") if isinstance(node.value, str) and _is_sentence(node.value) else node

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return ast.Pass() if is_text else self.generic_visit(node)


class _Unplaced(_Silent):
    """Without the file of the course that an import names, too."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        ours = (node.module or "").partition(".")[0] in OURS
        return ast.ImportFrom(None, node.names, node.level) if ours else node


def _is_sentence(text: str) -> bool:
    return " " in text.strip() and text.rstrip().endswith((".", "?", ":", ";"))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
