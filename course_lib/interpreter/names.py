"""The names that a kernel takes from outside of it: those that a compiled one has, and no others."""

import ast
import dis
from collections.abc import Mapping
from typing import Any

import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

from course_lib.interpreter.patching import part, replace

__all__ = ["Taken", "in_the_language", "install"]

PLAIN = int, float, str, tuple
LOOPS = "range", "static_range"
# what a rewritten kernel needs beside its own names; Triton looks for the module of its language among them
NEEDED = {"interpreter_semantic", "_loop_numbers", "_language", "_taken_from_outside", "tl"}


def install() -> None:
    triton_interpreter._taken_from_outside = _taken_from_outside
    triton_interpreter._language = tl
    replace(part(triton_interpreter, "FunctionRewriter"), "_compile_and_exec", _compile_and_exec)


def _compile_and_exec(original):
    """Triton leaves every name of its interpreter in the notebook: `math` and `np` were there without an import."""

    def compile_and_exec(self, tree):
        space = self.fn.__globals__
        before = set(space)
        made = original(self, Taken(*_outside(self.fn)).visit(tree))
        for name in space.keys() - before - NEEDED:
            del space[name]
        made.__wrapped__ = self.fn  # which has its own names for all that it takes from outside
        return made

    return compile_and_exec


def _outside(function) -> tuple[set[str], dict[str, list[str]]]:
    """Of the names from outside those that are numbers, strings or tuples now, and those that are Triton's own."""
    read = {one.argval for one in dis.get_instructions(function) if one.opname == "LOAD_GLOBAL"}
    values = {name: function.__globals__.get(name) for name in read}
    return {name for name, value in values.items() if _is_plain(value)}, in_the_language(values)


def in_the_language(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """The names that stand for a function of Triton's, and where each is found in its language."""
    return {name: place for name, value in values.items() if (place := _place(value))}


def _place(value: Any) -> list[str]:
    name, module = getattr(value, "__name__", ""), getattr(value, "__module__", "")
    loop = isinstance(value, type) and name in LOOPS
    if not (tl.core.is_builtin(value) or loop) or not str(module).startswith("triton.language."):
        return []
    return [name] if hasattr(tl, name) else ["math", name] if hasattr(tl.math, name) else []


def _is_plain(value) -> bool:
    return isinstance(value, PLAIN) and not hasattr(value, "_fields") and not isinstance(value, tl.dtype)


def _taken_from_outside(name: str, value):
    """The value, where a compiler would take it: it looks when it comes to the line."""
    if _is_plain(value):
        raise NameError(
            f"`{name}` is defined outside of the kernel, and a compiled kernel takes only constants from there: "
            f"write `{name} = tl.constexpr(...)`, or pass it as an argument"
        )
    return value


class Taken(ast.NodeTransformer):
    """In the body of a function: `_taken_from_outside("N", N)` in place of N, and `_language.load` in place of `load`,
    which was imported from there: a launch replaces what is in the language, and no other name for it."""

    def __init__(self, plain: set[str], of_triton: dict[str, list[str]]):
        self.plain, self.of_triton = plain, of_triton

    def visit_FunctionDef(self, node):
        node.body = [self.visit(line) for line in node.body]
        return node

    def visit_Name(self, node):
        if not isinstance(node.ctx, ast.Load):
            return node
        made = node
        if node.id in self.plain:
            made = ast.Call(ast.Name("_taken_from_outside", ast.Load()), [ast.Constant(node.id), node], [])
        elif node.id in self.of_triton:
            made = ast.Name("_language", ast.Load())
            for part_of in self.of_triton[node.id]:
                made = ast.Attribute(made, part_of, ast.Load())
        return ast.fix_missing_locations(ast.copy_location(made, node))
