"""What people write beside an answer: notes, clocks, settings, operators of classes of their own. Where a text is read
for ways past a probe, this is none, and no reason to look."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from autograder.referee.reading import Found, tree_of
from autograder.referee.submission import Cell

NOTES = set("datetime logging traceback datetime.datetime datetime.timedelta".split()) | {
    f"{module}.{part}"
    for module, parts in {
        "IPython.display": "clear_output display",
        "datetime.datetime": "fromtimestamp now strptime utcnow",
        "logging": "DEBUG ERROR INFO WARNING Logger basicConfig debug error exception getLogger info warning",
        "traceback": "format_exc print_exc",
        "torch": "profiler",
        "torch.profiler": "ProfilerActivity profile record_function",
        "torch.profiler.ProfilerActivity": "CPU CUDA",
    }.items()
    for part in parts.split()
}
# Modules that lead on, and what of them says or sets something: harmless where a text asks for nothing else of them.
ALONE = {
    "gc": ("gc.collect",),
    "os": ("os.environ", "os.getenv", "os.cpu_count"),
    "sys": ("sys.argv", "sys.stdout", "sys.version", "sys.version_info"),
    "timeit": ("timeit.default_timer",),
}
FILES = {None, "filename", "handlers", "stream"}  # by which logging writes to a file
CALLED = {"os.environ.get", "sys.stdout.flush", "sys.stdout.write"}
OPERATORS = tuple(
    f"defines __{name}__"
    for name in """abs add and bool contains floordiv hash iadd imul invert isub matmul mod mul neg or pow radd rmul
    rsub rtruediv setitem sub truediv xor""".split()
)


def without(found: Found, cells: Iterable[Cell], also: Iterable[str] = ()) -> Found:
    """What a reading found, less what is everyday. also: names that are harmless too."""
    nodes = [node for cell in cells if (tree := tree_of(cell)) for node in ast.walk(tree)]
    usual = NOTES.union(also, *(_of(module, nodes) for module in ALONE))
    if any(isinstance(node, ast.keyword) and node.arg in FILES for node in nodes):
        usual = {one for one in usual if not one.startswith("logging")}
    return [
        (cell, line, why)
        for cell, line, why in found
        if why.partition(" ")[2] not in usual and not why.startswith(OPERATORS)
    ]


def _of(module: str, nodes: list[ast.AST]) -> set[str]:
    """What is said of a module where it is asked for what is harmless only: `os.environ["LOCAL_RANK"]`."""
    asked = ALONE[module]
    found = [node for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node) in asked]
    known = [node for node in nodes if isinstance(node, ast.Name) and node.id == module]
    renamed = any(isinstance(node, ast.alias) and node.name == module and node.asname for node in nodes)
    return {module, *asked, *CALLED} if len(found) == len(known) and not renamed else set()
