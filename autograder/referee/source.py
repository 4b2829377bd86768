"""Which functions in the text of cells are Triton kernels: one answer for stubs, for the reading and for the ablation.

A kernel is a function under `@triton.jit`, bare or with options, beside whatever other decorators, by any name that the
cells give to `triton.jit` with an import or a plain assignment. What is made a kernel in another way is none here: the
ablation then does not find what ran, and a person looks.
"""

from __future__ import annotations

import ast
import functools


@functools.lru_cache(maxsize=256)  # the cells of a submission are asked for again for every exercise
def parsed(source: str) -> ast.Module | None:
    """None for what is no Python, or too deeply nested to be read here: it may have run where more stack was left."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@functools.lru_cache(maxsize=8)
def names_of_jit(sources: tuple[str, ...]) -> frozenset[str]:
    """How these cells may call triton.jit. Cells share their names."""
    names = {"triton.jit"}
    nodes = [node for source in sources if (tree := parsed(source)) for node in ast.walk(tree)]
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {f"{one.asname}.jit" for one in node.names if one.name == "triton" and one.asname}
        elif isinstance(node, ast.ImportFrom) and node.module == "triton":
            names |= {one.asname or one.name for one in node.names if one.name == "jit"}
    given: dict[str, set[str]] = {}  # by what stands on the right
    for node in (one for one in nodes if isinstance(one, ast.Assign)):
        given.setdefault(_dotted(node.value), set()).update(map(_dotted, node.targets))
    todo = [*names]
    while todo:
        more = given.get(todo.pop(), set()) - {""} - names
        names |= more
        todo += more
    return frozenset(names)


def is_kernel(node: ast.AST, jits: frozenset[str]) -> bool:
    """jits: what `names_of_jit` says of all cells."""
    return isinstance(node, ast.FunctionDef) and any(
        _dotted(one.func if isinstance(one, ast.Call) else one) in jits for one in node.decorator_list
    )


def _dotted(node: ast.expr) -> str:
    """A name, or a name and a dot and a name; nothing else can be triton.jit."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
