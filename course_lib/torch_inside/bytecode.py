"""A function's bytecode beside the graph that Dynamo made of it, line by line of the source."""

from __future__ import annotations

import dis
import inspect
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from course_lib.table import Table
from course_lib.torch_inside.events import GRAPH
from course_lib.torch_inside.graphs import Graph, read_graph
from course_lib.torch_inside.watching import Watched

SILENT = {"RESUME", "CACHE", "PRECALL", "NOP", "PUSH_NULL", "EXTENDED_ARG", "COPY_FREE_VARS"}


class Line(NamedTuple):
    line: int
    source: str
    bytecode: str
    graph: str


def graphs(seen: Watched) -> list[Graph]:
    """The graphs that Dynamo captured, in order."""
    return [read_graph(e.text) for one in seen.expect(GRAPH) for e in one.of(GRAPH)]


def bytecode(fn: Callable, seen: Watched) -> Table:
    """What Python would execute beside what the graph holds instead.

    Instructions that only Python's interpreter needs are left out. A line with bytecode and no graph was executed
    while tracing: its result is part of the graph, or of a guard.
    """
    fn = getattr(fn, "forward", None) or inspect.unwrap(fn)
    code = fn.__code__
    instructions = defaultdict(list)
    line = code.co_firstlineno
    for instruction in dis.get_instructions(fn):
        line = _line_of(instruction) or line
        if instruction.opname not in SILENT:
            instructions[line].append(f"{instruction.opname} {instruction.argrepr}".rstrip())
    steps = defaultdict(list)
    for graph in graphs(seen):
        for step in graph.steps:
            if step.file == code.co_filename:
                steps[step.line].append(f"{step.name} = {step.code}")
    lines, first = inspect.getsourcelines(fn)
    rows = [
        Line(n, lines[n - first].strip(), "\n".join(instructions[n]), "\n".join(dict.fromkeys(steps[n])))
        for n in sorted(instructions)
        if first <= n < first + len(lines)
    ]
    columns = ("line", "source", "bytecode", "graph")
    return Table(columns, tuple(rows), caption=f"{fn.__qualname__}: bytecode and graph", code=columns[1:])


def _line_of(instruction: dis.Instruction) -> int | None:
    """The line that begins here; the field changed its name and its meaning in Python 3.13."""
    if hasattr(instruction, "line_number"):
        return instruction.line_number
    return instruction.starts_line
