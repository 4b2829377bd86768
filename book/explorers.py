"""Figures with sliders on a page: the explorer that a cell shows, made here, and moved in the browser by its module."""

import ast

from book.markup import raw
from course_lib import results, widgets
from course_lib.roofline import Roof
from course_lib.widgets import live

__all__ = ["defined", "living"]


def living(cell, found: dict[str, str], page: str) -> str:
    """HTML that shows the explorer of a cell's last line; nothing where it shows none, or one that needs Python.

    found: name -> source of the functions that the lesson defines; a call may use those of recorded results.
    """
    call = shown(cell.source)
    if call is None:
        return ""
    known = {"widgets": widgets, "results": results, "Roof": Roof}
    for name in {node.id for node in ast.walk(call) if isinstance(node, ast.Name)} & found.keys():
        exec(found[name], known)
    explorer = eval(compile(ast.Expression(call), page, "eval"), known)
    if explorer.alone is None:
        return ""
    name = f"live-{cell.id}"
    script = live.script(explorer.alone.module, explorer.spec(), name)
    return raw(f'<div class="live" id="{name}"></div>\n<script type="module">\n{script}</script>')


def shown(source: str) -> ast.expr | None:
    """The call of `widgets` that a cell ends with."""
    last = ast.parse(source).body[-1:]
    if not last or not isinstance(last[0], ast.Expr) or not isinstance(last[0].value, ast.Call):
        return None
    function = last[0].value.func
    named = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
    return last[0].value if named and function.value.id == "widgets" else None


def defined(cells: list) -> dict[str, str]:
    """Name -> source of every function that a lesson's cells define."""
    trees = [ast.parse(cell.source) for cell in cells if cell.cell_type == "code"]
    functions = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name: ast.unparse(node) for node in functions}
