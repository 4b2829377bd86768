"""How a released notebook is made from a solution: stubs for what students write, and the same bytes every time."""

from __future__ import annotations

import ast
import io
import re
import tokenize

from nbformat import NotebookNode
from nbgrader.preprocessors import ClearSolutions, NbGraderPreprocessor

from autograder.classroom import lessons
from autograder.referee.source import is_kernel, names_of_jit

MESSAGE = "not written yet"
# `raise` is not Triton, and `pass` would leave the output unwritten: a kernel says so at compile time.
KERNEL_STUB = f'tl.static_assert(False, "{MESSAGE}")'
PYTHON_STUB = f'raise NotImplementedError("{MESSAGE}")'


class StubSolutions(ClearSolutions):
    """Replaces each `### BEGIN SOLUTION` ... `### END SOLUTION` by one line that fails, right for where it stands.

    `### BEGIN PREDICTION` ... `### END PREDICTION`, what the author predicted, may stand in any cell and goes without
    a trace: the line above it is what students fill in.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.code_stub = {"python": PYTHON_STUB}

    def _replace_solution_region(self, cell: NotebookNode, language: str) -> bool:
        if cell.cell_type != "code":
            return super()._replace_solution_region(cell, language)
        try:
            cell.source = without_predictions(cell.source)
            stubbed = stub_solutions(cell.source, self.begin_solution_delimeter, self.end_solution_delimeter)
        except ValueError as problem:
            raise RuntimeError(f"{problem}\n\n{cell.source}") from problem
        changed = stubbed != cell.source
        cell.source = stubbed
        return changed


class StableNotebook(NbGraderPreprocessor):
    """The last step of a release: the same bytes on every machine and every day."""

    def preprocess(self, nb: NotebookNode, resources: dict):
        lessons.tidy(nb)
        nb.metadata.pop("speed_of_light", None)
        return nb, resources


def problems(notebook: NotebookNode) -> list[str]:
    """A sentence for every code cell in which the solution cannot be told from the rest."""
    found = []
    for cell in notebook.cells:
        try:
            if cell.cell_type == "code":
                stub_solutions(without_predictions(cell.source))
        except SyntaxError as error:
            found.append(f"cell {cell.id}, line {error.lineno}: {error.msg}.")
        except ValueError as error:
            found.append(f"cell {cell.id}, {error}.")
    return found


def stub_solutions(source: str, begin: str = "BEGIN SOLUTION", end: str = "END SOLUTION") -> str:
    """The cell with every solution region replaced by a stub; ValueError when the regions make no sense."""
    if begin not in source and end not in source:
        return source
    plain = without_magics(source)
    regions = find_regions(plain, begin, end)
    if not regions:
        return source
    tree, jits = ast.parse(plain), names_of_jit((plain,))
    lines = source.split("\n")
    for first, last in reversed(regions):
        statement = first_statement(tree, first, last)
        indent = re.match(r"\s*", lines[statement.lineno - 1]).group()
        function = enclosing_function(tree, first, statement)
        stub = KERNEL_STUB if function and is_kernel(function, jits) else PYTHON_STUB
        lines[first - 1 : last] = [indent + stub]
    stubbed = "\n".join(lines)
    ast.parse(without_magics(stubbed))  # a region that cuts a block in two leaves no Python behind
    return stubbed


def without_predictions(source: str, begin: str = "BEGIN PREDICTION", end: str = "END PREDICTION") -> str:
    """The cell without the author's predictions; ValueError when their marks make no sense."""
    if begin not in source and end not in source:
        return source
    lines = source.split("\n")
    for first, last in reversed(find_regions(without_magics(source), begin, end)):
        del lines[first - 1 : last]
    emptied = "\n".join(lines)
    ast.parse(without_magics(emptied))
    return emptied


def without_magics(source: str) -> str:
    """The same lines as plain Python: a line magic or shell line becomes `pass`."""
    if source.startswith("%%"):
        raise ValueError("line 1: a solution cell cannot be a cell magic")
    return re.sub(r"^([ \t]*)[%!].*$", r"\1pass", source, flags=re.MULTILINE)


def find_regions(source: str, begin: str, end: str) -> list[tuple[int, int]]:
    """Line numbers (from 1) of each region's BEGIN and END comments; text inside strings does not count."""
    regions, start = [], 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if begin in token.string:
            if start:
                raise ValueError(f"line {start}: this {begin} has no {end} before the next one begins")
            start = token.start[0]
        elif end in token.string:
            if not start:
                raise ValueError(f"line {token.start[0]}: this {end} has no {begin}")
            regions.append((start, token.start[0]))
            start = 0
    if start:
        raise ValueError(f"line {start}: this {begin} has no {end}")
    return regions


def first_statement(tree: ast.AST, first: int, last: int) -> ast.stmt:
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and first < node.lineno < last]
    if not inside:
        raise ValueError(f"line {first}: this solution holds no statement")
    return min(inside, key=lambda node: (node.lineno, node.col_offset))


def enclosing_function(tree: ast.AST, first: int, statement: ast.stmt) -> ast.FunctionDef | None:
    """The innermost function that began before the region and holds its first statement."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno < first
        and node.lineno < statement.lineno <= node.end_lineno
    ]
    return max(around, key=lambda node: node.lineno, default=None)
