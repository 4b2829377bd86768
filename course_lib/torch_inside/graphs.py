"""A graph as torch prints it, read back: what each line computes, its type, and the line of Python it came from.

# File: model.py:8 in forward, code: y = x * 2
mul: "f32[3, 4][4, 1]cpu" = torch.ops.aten.mul.Tensor(x, 2)
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass

import torch

SHORT = {  # torch's abbreviations of its types, where they are not a letter and a number of bits
    "b8": torch.bool,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "c64": torch.complex64,
    "c128": torch.complex128,
}
TYPE = re.compile(r"(\w+)\[([^\]]*)\](?:\[([^\]]*)\])?(\w*)")
FILE = re.compile(r"\s*# File: (.*):(\d+) in (.*?), code: (.*)")
NUMBER = re.compile(r"-?\d+$")


@dataclass(frozen=True)
class Kind:
    """The type of a value: "f32[3, 4][4, 1]cpu"."""

    dtype: torch.dtype | None  # None for an abbreviation that is not known here
    sizes: tuple[int | str, ...]  # a name such as "s77" where the graph holds for every size
    text: str

    @property
    def bytes(self) -> int | None:
        """None where it depends on a size."""
        if self.dtype is None or any(isinstance(n, str) for n in self.sizes):
            return None
        return math.prod(self.sizes) * self.dtype.itemsize

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Step:
    name: str
    kind: Kind | None
    code: str  # "torch.ops.aten.mul.Tensor(x, 2)"; "" for an input
    file: str = ""
    line: int = 0
    source: str = ""  # the line of Python

    @property
    def operator(self) -> str:
        """ "aten.mul" for a call of an operator, else the name of what is called or ""."""
        call = re.match(r"torch\.ops\.([\w.]+)\(", self.code)
        if call:
            return ".".join(call[1].split(".")[:2])
        call = re.match(r"([\w.]+)\(", self.code)
        return call[1].rpartition(".")[2] if call else ""


@dataclass(frozen=True)
class Graph:
    inputs: tuple[Step, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]  # names; None and numbers are left out
    text: str

    def find(self, name: str) -> Step | None:
        return next((s for s in (*self.steps, *self.inputs) if s.name == name), None)


def read_graph(text: str) -> Graph:
    """The graph in what `print_readable` prints. The values that a line frees (`; x = None`) are left out."""
    tree = ast.parse(text.strip())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    forward = next(node for node in classes[0].body if isinstance(node, ast.FunctionDef) and node.name == "forward")
    inputs = [Step(a.arg, _kind(a.annotation), "") for a in forward.args.args if a.arg != "self"]
    sources = _sources(text.strip())
    steps, outputs = [], ()
    for node in forward.body:
        if isinstance(node, ast.Return) and node.value is not None:
            outputs = _names(node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is None:
            inputs.append(Step(node.target.id, _kind(node.annotation), ""))  # how a joint graph names its inputs
        elif isinstance(node, ast.AnnAssign | ast.Assign) and not _frees(node):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name):
                kind = _kind(node.annotation) if isinstance(node, ast.AnnAssign) else None
                steps.append(Step(target.id, kind, ast.unparse(node.value), *sources.get(node.lineno, ())))
    typed = {step.name for step in inputs if step.kind}
    inputs = [s for s in inputs if s.kind or (s.name not in typed and s.name not in ("primals", "tangents"))]
    return Graph(tuple(inputs), tuple(steps), outputs, text)


def _sources(text: str) -> dict[int, tuple[str, int, str]]:
    """Line of the text -> (file, line, source) of the comment above it."""
    found, current = {}, None
    for number, line in enumerate(text.split("\n"), 1):
        if comment := FILE.match(line):
            current = comment[1], int(comment[2]), comment[4].strip()
        elif line.lstrip().startswith("# No stacktrace found"):
            current = None
        elif current:
            found[number] = current
    return found


def _frees(node: ast.AST) -> bool:
    return isinstance(node.value, ast.Constant) and node.value.value is None


def _names(node: ast.AST) -> tuple[str, ...]:
    """The names of the returned values. Names of functions that wrap them, such as tree_unflatten, are left out."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(name for part in node.elts for name in _names(part))
    if isinstance(node, ast.Call) and node.args:  # pytree.tree_unflatten([...], self._out_spec)
        return _names(node.args[0])
    return ()


def _kind(annotation: ast.AST | None) -> Kind | None:
    if not (isinstance(annotation, ast.Constant) and isinstance(annotation.value, str)):
        return None
    found = TYPE.match(annotation.value)
    if not found:
        return Kind(None, (), annotation.value)
    sizes = [part.strip() for part in found[2].split(",") if part.strip()]
    numbers = tuple(int(s) if NUMBER.match(s) else s for s in sizes)
    return Kind(SHORT.get(found[1]), numbers, annotation.value)
