"""Inside the sandbox: a kernel made from the text of a submission, and from nothing else of it.

Only what Triton's language has is let through: its statements, its functions, numbers, and other kernels of the text.
No name leads from such a kernel to Python's own world, so in Triton's interpreter too it can only compute with blocks.
A function under `@triton.constexpr_function` is Python that works on constants: it has a little more, and no more ways.
"""

from __future__ import annotations

import ast
import builtins
import collections
import copy
import functools
import importlib
import io
import linecache
import math
import re
import types
from collections.abc import Callable, Mapping, Set
from typing import Any

import triton
import triton.language as tl
from triton._utils import type_canonicalisation_dict

STATEMENTS = (
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Return, ast.Expr, ast.Pass),
    *(ast.Break, ast.Continue, ast.Assert),
)
EXPRESSIONS = (
    *(ast.IfExp, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.keyword, ast.Subscript, ast.Slice),
    *(ast.Tuple, ast.List, ast.Name, ast.Constant, ast.Starred, ast.Attribute, ast.JoinedStr, ast.FormattedValue),
    *(ast.ListComp, ast.comprehension),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)
BUILTINS = {name: getattr(builtins, name) for name in "range min max abs int float bool len tuple print".split()}
OF_CONSTANTS = ast.Dict, ast.DictComp, ast.GeneratorExp, ast.Raise
MORE = """all any divmod enumerate reversed round set sorted str sum zip
    AssertionError KeyError NotImplementedError RuntimeError TypeError ValueError"""
MORE = {name: getattr(builtins, name) for name in MORE.split()}  # for functions of constants
# what kernels call by these names is Triton's or Python's, whatever a line of the kernel says
OF_THE_INTERPRETER = {"interpreter_semantic", "_loop_numbers"}  # what it and the course write into a kernel
# Arguments by which Triton's language is handed on: `tl.load(x, member=f)` calls f with the whole of it
INTERPRETERS_OWN = {"member", "_semantic", "_generator", "_builder"}
RESERVED = {
    *BUILTINS,
    *OF_THE_INTERPRETER,
    "getattr",
    "hasattr",
    "isinstance",
    "list",
    "_in_text",
    "_language",
    "_made",
}
RESERVED |= INTERPRETERS_OWN - {"member"}
KINDS = (tl.dtype, tl.constexpr, int, float, str)
CLASSES = (tl.range, tl.static_range, tl.constexpr, tl.tensor, tl.pointer_type, tl.block_type, tl.dtype)
LIBDEVICE = "triton.language.extra.libdevice"  # empty functions, in whose place the compiler puts those of a device
HOST_TOO = (triton.cdiv, triton.next_power_of_2)
NUMBERS = {name for pair in type_canonicalisation_dict.items() for name in pair}  # types as annotations name them
# of blocks, pointers, descriptors and types; none leads to the array beneath a block
MEMBERS = {name for kind in (tl.tensor, tl.tensor_descriptor, tl.dtype) for name in dir(kind) if name[0] != "_"}
MEMBERS |= {"dtype", "shape", "type", "value", "element_ty", "block_shape", "strides"}
MEMBERS -= {"handle", "data", "base"}
OF_PYTHON = {"bit_length", "get"}  # of numbers and tables


class NoKernel(TypeError):
    """A text that is no kernel in Triton's language."""


def _of_constants(function: Callable) -> Any:
    """Under `@triton.constexpr_function`. A compiler has no numbers of a block to give it, so the interpreter gives it
    none."""

    @functools.wraps(function)
    def called(*args, **kwargs):
        if not all(map(_is_constant, [*args, *kwargs.values()])):
            raise NoKernel(
                f"the function of constants `{function.__name__}` is given a block, or what else is no constant"
            )
        return function(*args, **kwargs)

    return triton.constexpr_function(called if triton.knobs.runtime.interpret else function)


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, (bool, dict, *KINDS))


class Text:
    """The cells of a submission, and the kernels made of them so far."""

    def __init__(self, cells: Mapping[str, str]):
        self.cells, self.made, self._told, self._fields = dict(cells), {}, {}, {}
        for name, source in self.cells.items():
            path = f"<{name}>"  # with the lines that Python counts, as cells.py has them
            linecache.cache[path] = (len(source), None, io.StringIO(source, newline=None).readlines(), path)

    def tell(self, kernels: Mapping[int, Mapping], value: Callable[[Any], Any]) -> None:
        """What a recorder says of kernels; `value` reads the values that names stand for."""
        self._told |= {number: (told, value) for number, told in kernels.items()}

    def name(self, fields: Mapping[str, int | None]) -> None:
        """Which place of a named tuple a name stands for. Kernels are given plain ones."""
        for name, place in fields.items():
            if self._fields.setdefault(name, place) != place:
                self._fields[name] = None
                self.made.clear()  # what was made knows one place

    def kernel(self, number: int) -> Any:
        """A kernel under triton.jit, whatever else decorates it in the text."""
        if number not in self.made:
            told, value = self._told[number]
            self.made[number] = None  # while it is made: a kernel that calls itself has no end
            self.made[number] = self._make(told, value)
        if self.made[number] is None:
            raise NoKernel("a kernel that calls itself")
        return self.made[number]

    def _make(self, told: Mapping, value: Callable) -> Any:
        cell, name, constants = str(told["cell"]), str(told["name"]), bool(told.get("constants"))
        node = _bare(self._found(cell, name, told["line"]))
        known = BUILTINS | (MORE if constants else {})
        made = _of_constants if constants else triton.jit
        names = {"__builtins__": dict(known), "_language": tl, "_made": made, "__name__": "submission"}
        outside = _outside(node) - BUILTINS.keys()  # by these names the compiler has functions of its own
        for one in outside - (known.keys() - told["names"].keys()):
            names[one] = self._meant(one, told["names"].get(one), value, name)
        _ByPlace(names, self._fields).visit(node)
        _check(node, names, constants)
        kernel = _written_anew(node, f"<{cell}: {name}>", names)
        if triton.knobs.runtime.interpret and not constants:
            # Triton would take the kernel's text from its file again; it is given what was checked.
            kernel.rewritten_fn[kernel.fn] = _for_the_interpreter(node, f"<{cell}>", names)
            kernel.rewritten_fn[kernel.fn].__wrapped__ = kernel.fn  # whose text is what was checked: for the compiler
        return kernel

    def _found(self, cell: str, name: str, line: int) -> ast.FunctionDef:
        if cell not in self.cells:
            raise NoKernel(f"the kernel `{name[:80]}` stands in no cell of the notebook")
        for node in ast.walk(ast.parse(self.cells[cell])):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                if line in (node.lineno, *(one.lineno for one in node.decorator_list)):
                    return node
        raise NoKernel(f"the kernel `{name[:80]}` is not defined by the text of its cell")

    def _meant(self, name: str, bound: Mapping | None, value: Callable, kernel: str) -> Any:
        """What a name from outside of a kernel stands for."""
        if bound is None or name in RESERVED:
            raise NoKernel(f"`{kernel}` uses `{name}`, which is nothing that a kernel can use")
        if "kernel" in bound:
            return self.kernel(bound["kernel"])
        if "value" in bound:
            return value(bound["value"])
        if "named" in bound:
            made = collections.namedtuple("Named", bound["named"], defaults=[*map(value, bound["defaults"])])
            self.name({name: place for place, name in enumerate(made._fields)})
            return made
        module = importlib.import_module(_of_the_language(bound.get("module") or bound.get("from")))
        found = module if "module" in bound else getattr(module, str(bound["object"]), None)
        if "object" in bound and not _is_language(found):
            raise NoKernel(f"`{kernel}` uses `{name}`, which is no part of Triton's language")
        return found


def _of_the_language(module: Any) -> str:
    """A module that names in a kernel may stand for."""
    if module in ("triton", "math") or str(module).startswith("triton.language"):
        return module
    raise NoKernel(f"a kernel uses the module `{str(module)[:80]}`, which is no part of Triton's language")


def _is_language(value: Any) -> bool:
    """Whether it is one of Triton's functions, classes or constants that a kernel may use."""
    if isinstance(value, KINDS) or value in CLASSES or value in HOST_TOO or tl.core.is_builtin(value):
        return True
    if isinstance(value, types.BuiltinFunctionType):
        return getattr(value, "__module__", "") == "math"
    if isinstance(value, types.FunctionType) and value.__module__ == LIBDEVICE:
        return True
    inner = getattr(value, "fn", None)
    return isinstance(value, triton.runtime.KernelInterface) and inner.__module__.startswith("triton.language")


def _bare(node: ast.FunctionDef) -> ast.FunctionDef:
    """The function without its decorators, its docstring and whatever else is not carried out."""
    node.decorator_list, node.returns = [], None
    for one in ast.walk(node):
        if isinstance(one, ast.arg) and one.annotation and not _decides(one.annotation):
            one.annotation = None
        for part in ("body", "orelse"):
            lines = getattr(one, part, None)
            if isinstance(lines, list) and lines:
                kept = [line for line in lines if not _is_remark(line)]
                setattr(one, part, kept or [ast.copy_location(ast.Pass(), lines[0])])
        if hasattr(one, "type_comment"):
            one.type_comment = None
    return node


def _decides(annotation: ast.expr) -> bool:
    """Whether a compiler asks for it: a constant, or a number's type. Readers alone want `torch.Tensor`."""
    text = ast.unparse(annotation).strip("'")
    return "constexpr" in text or text.rpartition(".")[2] in NUMBERS


def _is_remark(line: ast.stmt) -> bool:
    """A docstring, or lines that somebody took out by quotes around them."""
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def _written_anew(node: ast.FunctionDef, path: str, names: dict[str, Any]) -> Any:
    """The kernel in a file of its own, which holds what was checked and nothing else: Triton reads sources again."""
    text = f"@_made\n{ast.unparse(node)}\n"
    again = ast.parse(text).body
    if len(again) != 1 or ast.dump(_bare(again[0])) != ast.dump(node):
        raise NoKernel(f"`{node.name}` is not the same when it is written down")
    text = "\n" * max(0, node.lineno - 2) + text  # so that lines have about the numbers that they have in the cell
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    exec(compile(text, path, "exec", dont_inherit=True), names)
    return names.pop(node.name)


class _InText(ast.NodeTransformer):
    """`f"{_in_text(x)}"` for `f"{x}"`."""

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.FormattedValue:
        self.generic_visit(node)
        node.value = ast.copy_location(ast.Call(ast.Name("_in_text", ast.Load()), [node.value], []), node.value)
        return node


def _in_text(value: Any) -> Any:
    if not _is_constant(value):
        raise NoKernel("a text that is to hold the numbers of a block")
    return value


def _for_the_interpreter(node: ast.FunctionDef, path: str, names: dict[str, Any]) -> Callable:
    """What Triton's interpreter makes of the checked text, with the lines of the cell."""
    from triton.runtime import interpreter

    from course_lib.interpreter.names import Taken, in_the_language

    tree = Taken(set(), in_the_language(names)).visit(ast.Module([copy.deepcopy(node)], []))
    tree = interpreter.ASTTransformer().visit(_InText().visit(tree))
    made: dict[str, Any] = {}
    names |= {name: vars(interpreter)[name] for name in OF_THE_INTERPRETER} | {"_in_text": _in_text}
    exec(compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True), names, made)
    return made[node.name]


def _outside(node: ast.FunctionDef) -> set[str]:
    """The names that a kernel takes from outside of it."""
    own = {arg.arg for arg in _arguments(node)}
    own |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    if reserved := own & RESERVED - BUILTINS.keys():  # `max = tl.max(x, 0)` hides what a kernel may use anyway
        raise NoKernel(f"`{node.name}` gives `{min(reserved)}` another meaning")
    body = [*node.body, *_beside(node)]
    used = {n.id for part in body for n in ast.walk(part) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return used - own


def _beside(node: ast.FunctionDef) -> list[ast.expr]:
    """Defaults and annotations of arguments: numbers, names and parts of modules only."""
    parts = [*node.args.defaults, *filter(None, (arg.annotation for arg in _arguments(node)))]
    for part in parts:
        text = part.value if isinstance(part, ast.Constant) else ""
        plain = isinstance(part, ast.Constant | ast.Name | ast.Attribute | ast.UnaryOp)
        if not plain or (isinstance(text, str) and not re.fullmatch(r"[\w.]*", text)):
            raise NoKernel(f"line {part.lineno}: a default or an annotation that is computed")
    return parts


def _arguments(node: ast.FunctionDef) -> list[ast.arg]:
    if node.args.vararg or node.args.kwarg or node.args.kwonlyargs:
        raise NoKernel(f"`{node.name}` takes arguments in a form that kernels do not have")
    return [*node.args.posonlyargs, *node.args.args]


class _ByPlace(ast.NodeTransformer):
    """`sizes[0]` for `sizes.n`: what is checked and compiled has no attribute that a submission chose."""

    def __init__(self, names: Mapping[str, Any], fields: Mapping[str, int | None]):
        self.names, self.fields = names, fields

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr not in self.fields or _module(node.value, self.names):
            return node
        if self.fields[node.attr] is None or node.attr in MEMBERS:
            raise NoKernel(f"line {node.lineno}: `.{node.attr}` may be one of several things")
        made = ast.Subscript(node.value, ast.Constant(int(self.fields[node.attr])), node.ctx)
        return ast.fix_missing_locations(ast.copy_location(made, node))


def _check(node: ast.FunctionDef, names: Mapping[str, Any], constants: bool = False) -> None:
    """NoKernel for anything in it that Triton's language does not have, or Python that works on constants."""
    kinds = STATEMENTS + EXPRESSIONS + (OF_CONSTANTS if constants else ())
    for part in [*node.body, *_beside(node)]:
        for one in ast.walk(part):
            if not isinstance(one, kinds):
                raise NoKernel(f"line {getattr(one, 'lineno', '?')}: {type(one).__name__} is nothing that kernels have")
            if isinstance(one, ast.Constant) and isinstance(one.value, str) and len(one.value.splitlines()) > 1:
                raise NoKernel(f"line {one.lineno}: a string of several lines")
            if isinstance(one, ast.keyword) and one.arg in {*INTERPRETERS_OWN, None}:
                raise NoKernel(f"line {one.value.lineno}: `{one.arg or '**'}` is no argument for a kernel to give")
            if isinstance(one, ast.Name) and one.id.startswith("__"):
                raise NoKernel(f"line {one.lineno}: `{one.id}` is no name for a kernel")
            if isinstance(one, ast.Attribute | ast.Subscript | ast.Starred) and not isinstance(one.ctx, ast.Load):
                raise NoKernel(f"line {one.lineno}: a kernel assigns to names only")
            if isinstance(one, ast.Attribute):
                _check_attribute(one, names, MEMBERS | (OF_PYTHON if constants else set()))


def _check_attribute(node: ast.Attribute, names: Mapping[str, Any], members: Set[str]) -> None:
    """A part of Triton's language, or of a block."""
    inside = names.get(node.value.id) if isinstance(node.value, ast.Name) else _module(node.value, names)
    if not isinstance(inside, types.ModuleType):
        if node.attr not in members:
            raise NoKernel(f"line {node.lineno}: `.{node.attr}` is nothing that a block has")
        return
    found = getattr(inside, node.attr, None)
    if isinstance(found, types.ModuleType) and found.__name__.startswith("triton.language"):
        return
    if (inside is math and isinstance(found, float)) or _is_language(found):
        return
    raise NoKernel(f"line {node.lineno}: `{inside.__name__}.{node.attr}` is no part of Triton's language")


def _module(node: ast.expr, names: Mapping[str, Any]) -> types.ModuleType | None:
    """The module that a chain of attributes leads to."""
    if isinstance(node, ast.Name):
        found = names.get(node.id)
    else:
        found = getattr(_module(node.value, names), node.attr, None) if isinstance(node, ast.Attribute) else None
    return found if isinstance(found, types.ModuleType) else None
