"""The names that a kernel takes from outside of it: those that a compiled one has, and no others."""

import ast
import dis

import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

from course_lib.interpreter.patching import part, replace

__all__ = ["install"]

PLAIN = int, float, str, tuple
# what a rewritten kernel needs beside its own names; Triton looks for the module of its language among them
NEEDED = {"interpreter_semantic", "_loop_numbers", "_taken_from_outside", "tl"}


def install() -> None:
    triton_interpreter._taken_from_outside = _taken_from_outside
    replace(part(triton_interpreter, "FunctionRewriter"), "_compile_and_exec", _compile_and_exec)


def _compile_and_exec(original):
    """Triton leaves every name of its interpreter in the notebook: `math` and `np` were there without an import."""

    def compile_and_exec(self, tree):
        space = self.fn.__globals__
        before = set(space)
        made = original(self, _Taken(_plain(self.fn)).visit(tree))
        for name in space.keys() - before - NEEDED:
            del space[name]
        return made

    return compile_and_exec


def _plain(function) -> set[str]:
    """The names from outside that are numbers, strings or tuples now."""
    read = {one.argval for one in dis.get_instructions(function) if one.opname == "LOAD_GLOBAL"}
    return {name for name in read if _is_plain(function.__globals__.get(name))}


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


class _Taken(ast.NodeTransformer):
    """`_taken_from_outside("N", N)` in place of N, in the body of a function."""

    def __init__(self, names: set[str]):
        self.names = names

    def visit_FunctionDef(self, node):
        node.body = [self.visit(line) for line in node.body]
        return node

    def visit_Name(self, node):
        if node.id not in self.names or not isinstance(node.ctx, ast.Load):
            return node
        call = ast.Call(ast.Name("_taken_from_outside", ast.Load()), [ast.Constant(node.id), node], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))
