"""Python of a cell, as a worker runs it and as the referee asks whether one would. Without torch: a text that was
handed in is read in a process that has no room for it."""

from __future__ import annotations

import ast
import contextlib
import types

KEPT = annotations.compiler_flag  # what a notebook keeps of `from __future__ import annotations` for all later cells


def whole(source: str | ast.Module, path: str, future: int) -> types.CodeType:
    return compile(source, path, "exec", future | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def in_statements(source: str, path: str, future: int) -> list[types.CodeType]:
    """Each statement of a cell by itself, under what the cell imports from __future__."""
    body = ast.parse(source, path).body
    imported = [one for one in body if isinstance(one, ast.ImportFrom) and one.module == "__future__"]
    return [whole(ast.Module([*imported, one], []), path, future) for one in body if one not in imported]


def may_run(source: str) -> bool:
    """Whether some worker runs a cell: whole or in statements, and under what an earlier cell took from __future__."""
    for parts in (whole, in_statements):
        for future in (0, KEPT):
            with contextlib.suppress(SyntaxError, ValueError):
                parts(source, "", future)
                return True
    return False
