"""Which definitions of a text lead to a kernel, or are led to by one of these."""

from __future__ import annotations

import ast
import itertools
import symtable
from collections.abc import Iterable, Iterator

from autograder.referee.naming import dotted_of, imports_of, root_of
from autograder.referee.source import is_kernel

# What is left of torch for such code: memory, types, the device.
BESIDE_KERNELS = set(
    """Tensor Size device dtype empty empty_like empty_strided zeros zeros_like ones ones_like full full_like
    tensor as_tensor arange cuda version float16 float32 float64 float half double bfloat16 int8 int16 int32
    int64 uint8 bool finfo iinfo no_grad inference_mode is_tensor inf nan pi backends autograd Generator
    contiguous_format cat stack promote_types float8_e4m3fn float8_e5m2 get_default_dtype as_strided broadcast_tensors
    broadcast_to chunk flatten is_floating_point movedim narrow permute preserve_format ravel reshape split squeeze
    transpose unbind unflatten unsqueeze""".split()
)
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
TIMERS, WALKS = ("course_lib.timing.", "triton.testing."), {"all", "any", "dict", "list", "max", "min", "sum", "tuple"}
MOST = 300_000  # parts of a text; the longest lesson, solved, has less than a tenth of them
PLAIN = set("T device dtype grad is_cuda median ndim shape".split())  # of tensors and times: nothing that can be called


def beside_kernels(
    trees: list[ast.Module], judged: frozenset[str], free: frozenset[str], jits: frozenset[str],
    meanings: list[dict[str, str]],
) -> set[ast.stmt]:  # fmt: skip
    """The definitions that lead to a kernel, or are led to by one of these; kernels themselves left out."""
    tops = [node for tree in trees for node in statements(tree)]
    if any(itertools.islice((one for node in tops for one in ast.walk(node)), MOST, None)):
        raise ValueError(f"more than {MOST:,} parts, those of a statement in a statement again")
    kernels = {node.name for node in tops if is_kernel(node, jits)}
    imported = {name for tree in trees for name, _ in imports_of(tree)}
    binds = {node: bound_by(node, imported) for node in tops if not is_kernel(node, jits)}
    binds = {node: names for node, names in binds.items() if names}
    uses = {node: _used(symtable.symtable(ast.unparse(node), "", "exec")) for node in binds}
    binds = {node: binds[node] for node in binds.keys() - (_led_to(free, binds, uses) - _led_to(judged, binds, uses))}
    kernels |= {n.name for node in binds for n in ast.walk(node) if is_kernel(n, jits)}  # made inside a function
    code = {node for node in binds if _is_code(node)}  # a line that only tries a kernel out is not what is judged
    inside = set().union(*(_used(symtable.symtable(ast.unparse(n), "", "exec")) for n in tops if is_kernel(n, jits)))
    found = {node for node in code if uses[node] & kernels or binds[node] & inside}
    found |= {node for node in code if any(is_kernel(n, jits) for n in ast.walk(node))}
    found = _all_from(found, (binds, _by_name({node: uses[node] for node in code})))
    tried = _only_tried(trees, binds, meanings, judged) if judged else set()  # nor is a function that does
    tried = {node for node in tried if binds[node].isdisjoint(inside)}
    beside = {node: uses[node] - judged - kernels if node in tried else uses[node] for node in code}
    led = found - tried | {node for node in binds if binds[node] & judged}
    return _all_from(led, (uses, _by_name(binds)), (binds, _by_name(beside)))


Names = dict[ast.stmt, set[str]]


def _by_name(names: Names) -> dict[str, set[ast.stmt]]:
    found: dict[str, set[ast.stmt]] = {}
    for node, own in names.items():
        for name in own:
            found.setdefault(name, set()).add(node)
    return found


def _all_from(led: set[ast.stmt], *ways: tuple[Names, dict[str, set[ast.stmt]]]) -> set[ast.stmt]:
    """The statements that these lead to, each way from a statement to its names and from a name to its statements."""
    found, todo, done = set(led), list(led), [set() for _ in ways]
    while todo:
        node = todo.pop()
        for seen, (names, nodes) in zip(done, ways, strict=True):
            fresh = names[node] - seen
            seen |= fresh
            more = set().union(*(nodes.get(name, set()) for name in fresh)) - found
            found |= more
            todo += more
    return found


def _only_tried(
    trees: list[ast.Module], binds: dict, meanings: list[dict[str, str]], judged: frozenset[str]
) -> set[ast.stmt]:
    """Tests and measurements: functions that are called and never handed on, and hand on nothing that can be called."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    called, inner = {call.func for call in calls}, {node.value for node in nodes if isinstance(node, ast.Attribute)}
    named = {name for tree in trees for name, _ in imports_of(tree)}
    given = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    given |= {n.arg for n in nodes if isinstance(n, ast.arg)} | {n.name for n in nodes if isinstance(n, FUNCTIONS)}
    at_once = {a for call in calls for a in call.args if _meant(call.func, meanings, given, TIMERS)}
    walked = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in WALKS - given - named]
    at_once |= {a for call in walked for a in call.args if isinstance(a, ast.GeneratorExp)}
    own = {node.name for node in nodes if isinstance(node, FUNCTIONS)}
    own = own.union(*(names for node, names in binds.items() if _is_code(node)))
    handed_on = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n not in called}
    not_tried = judged | handed_on

    def hands_on(node: ast.AST) -> bool:
        if isinstance(node, FUNCTIONS | ast.Lambda | ast.GeneratorExp | ast.Yield | ast.YieldFrom):
            return node not in at_once
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            return False
        for dotted in filter(None, (dotted_of(node, aliases) for aliases in meanings)):
            _, *parts = dotted.split(".")
            if parts and not BESIDE_KERNELS.isdisjoint(parts[:1]):
                continue
            if any(part[:1].isupper() for part in parts) or node not in called | inner:
                return True
        if isinstance(node, ast.Name):
            return node.id in own and node not in called
        return node not in called | inner and node.attr not in PLAIN and root_of(node) not in named

    def tries(node: ast.stmt) -> bool:
        if not isinstance(node, ast.FunctionDef) or node.decorator_list or node.name in not_tried:
            return False
        return not any(hands_on(part) for part in ast.walk(node) if part is not node)

    return {node for node in binds if tries(node)}


def _meant(node: ast.AST, meanings: list[dict[str, str]], given: set[str], parts: tuple[str, ...]) -> bool:
    """Whether it is a part of these modules, whatever its name stands for."""
    return root_of(node) not in given and all(dotted_of(node, aliases).startswith(parts) for aliases in meanings)


def _led_to(names: frozenset[str], binds: Names, uses: Names) -> set[ast.stmt]:
    """The statements that bind these names, or what such a statement uses."""
    return _all_from({node for node in binds if binds[node] & names}, (uses, _by_name(binds)))


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """The statements at the top of a cell, those under its `if`, `for`, `with` and `try` too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            yield from statements(node)


def _is_code(node: ast.stmt) -> bool:
    """A function, a class, or a name that is bound to one by an assignment."""
    if isinstance(node, ast.Assign):
        value = node.value
        partial = isinstance(value, ast.Call) and ast.unparse(value.func).endswith("partial")
        return partial or isinstance(value, ast.Lambda | ast.Name | ast.Attribute | ast.Subscript)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _used(table: symtable.SymbolTable) -> set[str]:
    """The global names that a statement reads, its own variables left out."""
    top = table.get_type() == "module"
    own = {s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global())}
    return own.union(*map(_used, table.get_children()))


def bound_by(node: ast.stmt, imported: Iterable[str] = ()) -> set[str]:
    """The global names that a statement gives a value, in whatever way, or whose value it may change. What is imported
    is changed by no call of its functions."""
    inner = list(ast.walk(node))
    made_global = {name for one in inner if isinstance(one, ast.Global) for name in one.names}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name} | made_global
    if isinstance(node, ast.Import | ast.ImportFrom):
        return set()
    stored = {one.id for one in inner if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    caught = {name for one in inner if (name := getattr(one, "name", None)) and not isinstance(one, ast.alias)}
    caught = {name for name in caught if isinstance(name, str)}
    return stored | made_global | caught | _changed(inner).difference(imported)


def _changed(nodes: list[ast.AST]) -> set[str]:
    """The names of what is changed in place: HELPERS of `HELPERS.append(f)`, TABLE of `TABLE["f"] = f`."""
    places = [n for n in nodes if isinstance(n, ast.Attribute | ast.Subscript) and not isinstance(n.ctx, ast.Load)]
    called = [n.func for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    return {_holder(place) for place in [*places, *called]} - {""}


def _holder(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
