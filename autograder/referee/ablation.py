"""Text in, text out: the submission with its kernels switched off, wholly or for half of the program instances.

If the answer comes from the kernels, it must go wrong when they do nothing, and in part when half of them do. Made
by the referee in the source, so that nothing inside the process can tell the kernel of the trial from the real one
by more than reading it.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable

from autograder.referee.source import is_kernel, names_of_jit, parsed
from autograder.referee.submission import Cell

PRIME = 2**31 - 1


def emptied(cells: tuple[Cell, ...], kernels: set[str]) -> tuple[Cell, ...]:
    """The bodies of these kernels return at once; every line keeps its number."""
    return _changed(cells, kernels, lambda lines, node: _replace_body(lines, node, "return"))


def halved(cells: tuple[Cell, ...], kernels: set[str], salt: int) -> tuple[Cell, ...]:
    """A half of the program instances, chosen by the salt, returns early.

    `~salt` switches off exactly the instances that `salt` leaves on: of a kernel whose work lies in one instance,
    one of the two leaves nothing.
    """
    draw = random.Random(salt if salt >= 0 else ~salt)
    tl = f"_language_{draw.getrandbits(60):x}"
    a, b, c, d = (draw.randrange(1, PRIME) for _ in range(4))
    # 64-bit, so that nothing wraps: neither Triton nor its interpreter need agree on what happens then
    mixed = " + ".join(f"{tl}.program_id({axis}).to({tl}.int64) * {f}" for axis, f in enumerate((a, b, c)))
    mixed = f"(({mixed} + {d}) % {PRIME})"
    for _ in range(2):  # squares: the bits of a linear form are often the same for a whole row of neighbours
        mixed = f"(({mixed} * {mixed} + {d}) % {PRIME})"
    # an early return may stand only at the top level of a kernel
    guard = f"if ({mixed} >> 13) % 2 == {int(salt >= 0)}: return"
    return (
        Cell("half of the programs", f"import triton.language as {tl}"),
        *_changed(cells, kernels, lambda lines, node: _insert_line(lines, node, guard)),
    )


def not_found(cells: tuple[Cell, ...], kernels: set[str]) -> set[str]:
    """The kernels that cannot be switched off in the text: made in another way, or sharing their name."""
    jits = _jits(cells)
    nodes = [node for cell in cells for node in _functions(cell)]
    known = {node.name for node in nodes if is_kernel(node, jits)}
    ambiguous = {node.name for node in nodes if not is_kernel(node, jits)}
    return (set(kernels) - known) | (set(kernels) & ambiguous)


def _changed(cells: tuple[Cell, ...], kernels: set[str], change: Callable) -> tuple[Cell, ...]:
    jits = _jits(cells)
    made = []
    for cell in cells:
        nodes = [n for n in _functions(cell) if n.name in kernels and is_kernel(n, jits)]
        # in bytes, because ast counts columns in them; from the last, so that line numbers above stay
        source = cell.source.replace("\r\n", "\n").replace("\r", "\n")  # what Python takes for the end of a line
        lines = [line.encode() for line in source.split("\n")]
        for node in sorted(nodes, key=lambda n: n.lineno, reverse=True):
            change(lines, node)
        made.append(Cell(cell.name, b"\n".join(lines).decode()) if nodes else cell)
    return tuple(made)


def _replace_body(lines: list[bytes], node: ast.FunctionDef, text: str) -> None:
    first, last = node.body[0], node.body[-1]
    row, end = first.lineno - 1, last.end_lineno - 1
    lines[row] = lines[row][: first.col_offset] + text.encode()
    for below in range(row + 1, end + 1):
        lines[below] = b""


def _insert_line(lines: list[bytes], node: ast.FunctionDef, text: str) -> None:
    first = node.body[0]
    row, column = first.lineno - 1, first.col_offset
    head, tail = lines[row][:column], lines[row][column:]
    if not head.strip():
        lines.insert(row, head + text.encode())
    else:  # the body stands on the line of its `def`
        inside = b" " * (node.col_offset + 4)
        lines[row : row + 1] = [head, inside + text.encode(), inside + tail]


def _functions(cell: Cell) -> list[ast.FunctionDef]:
    tree = parsed(cell.source)
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] if tree else []


def _jits(cells: tuple[Cell, ...]) -> frozenset[str]:
    return names_of_jit(tuple(cell.source for cell in cells))
