"""What the names of a text stand for, by its imports alone: nothing of it is run."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

COURSE = Path(__file__).resolve().parents[2]
MEANINGS = 8  # of a name; who gives it more has it read by a person
DEEPEST = 20  # attributes in a row: a.b.c has two


def meanings_of(trees: list[ast.Module], renamed: bool = False) -> list[dict[str, str]]:
    """What names stand for, tl -> triton.language. A name that is given several meanings, one perhaps where nothing
    runs, has each of them in one of the dictionaries.

    renamed: also names that are assigned something imported, `probe = autograder.inside.probes.towers`.
    """
    found: dict[str, dict[str, None]] = {}  # the inner one for its order

    def means(name: str, dotted: str) -> None:
        each = found.setdefault(name, {})
        each[dotted] = None
        if len(each) > MEANINGS:
            raise ValueError(f"{name} has more than {MEANINGS} meanings")

    for tree in trees:
        for name, dotted in imports_of(tree):
            means(name, followed(dotted))
    nodes = [node for tree in trees for node in ast.walk(tree)] if renamed else []
    for node in (one for one in nodes if isinstance(one, ast.Assign)):
        root = root_of(node.value)
        stands_for = [dotted_of(node.value, {root: one}) for one in found.get(root, ())]
        for name in (one.id for one in node.targets if isinstance(one, ast.Name)):
            for dotted in filter(None, stands_for):
                means(name, dotted)
    most = max(map(len, found.values()), default=1)
    return [{name: [*each][n % len(each)] for name, each in found.items()} for n in range(most)]


def imports_of(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                yield one.asname or one.name.split(".")[0], one.name if one.asname else one.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            yield from ((one.asname or one.name, f"{node.module or ''}.{one.name}") for one in node.names)


def followed(dotted: str) -> str:
    """Where a name comes from that a module of the course has imported itself: numpy for course_lib.numerics.np."""
    module, _, name = dotted.rpartition(".")
    return _imported_by(module).get(name, dotted) if module.startswith("course_lib") else dotted


@functools.lru_cache(maxsize=256)
def _imported_by(module: str) -> dict[str, str]:
    path = COURSE.joinpath(*module.split("."))
    files = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
    return dict(imports_of(ast.parse(files[0].read_text(encoding="utf-8")))) if files else {}


def dotted_of(node: ast.AST, aliases: dict[str, str]) -> str:
    """torch.nn.functional.softmax for F.softmax; "" for what no import leads to."""
    parts = []
    while isinstance(node, ast.Attribute) and len(parts) <= DEEPEST:
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in aliases:
        return ""
    return ".".join([aliases[node.id], *reversed(parts)])


def root_of(node: ast.AST) -> str:
    """The name that a chain of attributes starts from, or "" where there is none or the chain is long."""
    for _ in range(DEEPEST):
        if isinstance(node, ast.Attribute):
            node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def name_of(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))
