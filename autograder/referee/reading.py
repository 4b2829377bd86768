"""A reading of the submission's text: names that an answer to a lesson has no use for.

What stands here sends a submission to a person, with the line, and refuses none: a name proves nothing, and who wants
to hide one can. Allowed imports are listed rather than forbidden ones, because there are fewer of them.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import re
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterator

from autograder.inside.compiling import may_run
from autograder.judging import ptx
from autograder.referee.leading import BESIDE_KERNELS, beside_kernels, bound_by, statements
from autograder.referee.naming import DEEPEST, dotted_of, followed, imports_of, meanings_of, name_of, root_of
from autograder.referee.source import is_kernel, names_of_jit
from autograder.referee.submission import BINDING, INNER, Cell

IMPORTS = set(
    """__future__ abc autograder bisect collections contextlib copy course_lib dataclasses decimal enum fractions
    functools heapq itertools json math matplotlib numbers numpy operator pandas pprint random re statistics string
    textwrap time torch tqdm triton typing warnings""".split()
)
# What people import and never use. torch has imported each of these before any cell runs, so the import itself only
# binds a name. Who can look a name up that the text does not hold can look `torch.os` up as well.
BOUND_ONLY = set(
    """argparse csv datetime glob inspect io logging os pathlib pickle platform shutil subprocess sys tempfile timeit
    traceback uuid""".split()
)
OF_THE_GRADER = tuple(
    f"autograder.{part}" for part in "bank call classroom exercise exercises inside judging live referee".split()
)
# parts of what may be imported that lead past the exercise
PARTS = (
    *("torch." + part for part in "_C _dynamo _inductor _ops classes compile compiler cpp fx jit library".split()),
    *("torch." + part for part in "multiprocessing ops overrides package profiler serialization load save".split()),
    *("torch." + part for part in "autograd.profiler autograd.profiler_util utils cuda.cudart cuda.memory".split()),
    *(
        "torch.cuda." + part
        for part in "caching_allocator_alloc caching_allocator_delete CUDAPluggableAllocator".split()
    ),
    *("triton." + part for part in "runtime compiler backends knobs tools compile".split()),
    *("course_lib." + part for part in "interpreter kernels parallel compiled".split()),
    *OF_THE_GRADER,
    "course_lib.torch_inside.reuse",  # it runs text
    "functools.singledispatch",  # it evaluates annotations
    "functools.singledispatchmethod",
    "numpy.ctypeslib",
    "numpy.f2py",
    "numpy.load",
    "numpy.testing.measure",
    "numpy.testing.rundocs",
    "numpy.testing.runstring",
    "operator.attrgetter",
    "operator.methodcaller",
    "pandas.read_pickle",
    "string.Formatter",
    "torch.hub",
    "typing.get_type_hints",
    "typing.ForwardRef",
)
# of the above, what answers have a use for
HARMLESS = set(
    """numpy.prod operator.mul torch.utils.checkpoint.checkpoint triton.runtime.driver.active.get_active_torch_device
    triton.runtime.driver.active.get_current_target triton.runtime.driver.active.utils.get_device_properties
    triton.tools.tensor_descriptor.TensorDescriptor triton.tools.tensor_descriptor.TensorDescriptor.from_tensor
    types.SimpleNamespace""".split()
)
PUBLIC = "torch._foreach_"  # in torch's documentation, whatever its name says
OPERATOR = "torch.library.custom_op"  # harmless with a name of one's own, "mine::gelu": it replaces nothing of torch
TORCHS = {"aten", "autograd", "c10d", "higher_order", "inductor", "prim", "prims", "profiler", "quantized"}
# of torch.nn what a model is made of, and the allowed operator that a part runs
OF_MODELS = {
    "nn.Module": "",
    "nn.ModuleList": "",
    "nn.Parameter": "",
    "nn.Linear": "linear",
    "nn.LayerNorm": "layer_norm",
}
# Modules of Python that are reached through another one: warnings.sys
FOREIGN = (
    set(sys.stdlib_module_names)
    - IMPORTS
    - {"array", "chunk", "code", "profiler", "select", "signal", "test", "trace", "types"}
)
OF_ITSELF = set("bool bytearray bytes dict float frozenset int list set str tuple".split())  # `case int(x)` is x itself
OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}  # documented, whatever their names say
OWN = ("self", "cls", "ctx")  # whose attributes a submission sets
SETTABLE = {"bias", "grad", "requires_grad", "weight"}  # of any tensor or layer
IN_A_KERNEL = {"handle", "data"}  # of a block in Triton's interpreter: the array beneath
LOOKED_UP = re.compile(r"\{\w*(?:\.\w|\[)[^{}]*\}|__\w+__|/proc/")
NAMES = BINDING - {"globals"} | set(
    "__builtins__ __import__ __loader__ __spec__ breakpoint compile delattr dir getattr locals memoryview open".split()
)
ATTRIBUTES = set(
    """builtins ctypes gc importlib inspect linecache modules os subprocess sys ag_frame cr_frame f_back f_builtins
    f_code f_globals f_locals gi_frame tb_frame tb_next ctypeslib from_blob from_buffer from_file frombuffer fromfile
    tofile memmap untyped_storage storage set_ share_memory_ register_hook as_subclass device_caches""".split()
)
CALLED = {"modules"}  # harmless as a method, which torch.nn.Module has; sys.modules is none
DUNDERS = set(
    """__all__ __author__ __call__ __class__ __doc__ __enter__ __exit__ __getitem__ __init__ __iter__ __len__
    __main__ __name__ __next__ __post_init__ __repr__ __slots__ __str__ __version__""".split()
)
# Settings, not patches: the one kind of assignment into a module that a lesson itself makes.
SETTINGS = ("torch.backends.", "matplotlib.", "pandas.options.display.")
# Of the code that launches kernels, or is called by it: what could do their work, or tell one call from another.
NOT_BESIDE_KERNELS = ("numpy", "pandas", "matplotlib", "operator", "time", "random", "statistics")
NAMES_NOT_BESIDE_KERNELS = {"globals"}
ATTRIBUTES_NOT_BESIDE_KERNELS = {"data_ptr", "item", "numpy", "query", "storage_offset", "tolist"}
# Modules of torch that lead on, and what of them may stand there: no events, streams or counts of memory
OF_MODULES = {
    "autograd": set("Function function function.once_differentiable grad".split()),
    "cuda": set(
        """current_device device device_count get_device_capability get_device_name get_device_properties is_available
        is_bf16_supported""".split()
    ),
}
# Methods of tensors that look at what there is, and other things' methods of the same name
NOT_COMPUTING = set(
    """adjoint conj dsplit get_device grad hsplit is_complex is_conj is_distributed is_inference is_neg is_signed
    median moveaxis numel resolve_conj resolve_neg swapaxes swapdims tensor_split vsplit""".split()
)

# Where a probe looks on from within: what puts another thing in the place of what it uses, and what leads there.
REPLACING = BINDING | {"__builtins__", "__import__", "delattr"}
REACHING = INNER | set(
    """ForwardRef __annotations__ __closure__ __code__ __defaults__ __import__ __instancecheck__ __loader__
    __match_args__ __spec__ __subclasses__ _getframe currentframe f_back f_builtins from_callable get_objects
    get_referents get_referrers get_type_hints modules register_callback setprofile setprofile_all_threads settrace
    settrace_all_threads singledispatch singledispatchmethod tb_frame tb_next wrote""".split()
)
# Of inspect: with one argument and no options they tell something, and neither changes nor runs anything.
QUESTIONS = frozenset("getdoc getmro getsource getsourcelines isclass isfunction signature".split())
# Of unittest: what runs tests of one's own. unittest.mock replaces, and `main(module)` hands out a module by its name.
TESTING, HOW_TO_TEST = {"TestCase", "TestSuite", "TextTestRunner"}, {"argv", "exit", "failfast", "verbosity"}
BY_ITSELF = {"importlib.metadata.version", *(f"unittest.{name}" for name in TESTING)}  # imported from what leads on
LEADING = set("builtins ctypes importlib inspect marshal pickle pkgutil pydoc runpy unittest".split())
# What a graph takes in without looking into it, and what hides from a mode
PAST_GRAPHS = set(
    """allow_in_graph nonstrict_trace substitute_in_graph DisableTorchFunction DisableTorchFunctionSubclass
    _disable_current_modes""".split()
)
COMPILERS_SETTINGS = ("torch._dynamo.config.", "torch._functorch.config.", "torch._inductor.config.")
# In text or bytes that are no Python: lines of doctest, a pickle, a name that a library looks up
NAMED = re.compile(rf"(?:{'|'.join(map(re.escape, OF_THE_GRADER))})\b")
TO_PROBES = {part for name in OF_THE_GRADER for part in name.split(".")} | {"probes"}

Found = list[tuple[str, int, str]]


def or_unreadable(read: Callable[..., Found]) -> Callable[..., Found]:
    """What is too deeply nested for us may still have run: a sandbox has more stack left. Then a person reads it."""

    @functools.wraps(read)
    def found(*cells, **options) -> Found:
        try:
            return read(*cells, **options)
        except (RecursionError, MemoryError, ValueError, SyntaxError, OSError):  # the last of a module's long name
            return [("", 0, "is nested too deeply to be read, or says too much at once")]

    return found


@functools.lru_cache(maxsize=16)  # every exercise of a submission asks
@or_unreadable
def suspicious(
    cells: tuple[Cell, ...],
    judged: frozenset[str] = frozenset(),
    free: frozenset[str] = frozenset(),
    allowed: frozenset[str] = frozenset(),
    methods: bool = True,
) -> Found:
    """(cell, line, what stands there), in order. Cells of the release's own setup are not read.

    judged: functions that should compute in kernels. free: functions that may also compute in other ways, and so may
    what only these lead to. allowed: what torch may compute beside kernels, "mm". methods: whether methods of tensors
    that compute are looked for, which asks torch.
    """
    trees = [(cell, tree) for cell in cells if (tree := tree_of(cell))]
    meanings, jits = meanings_of([tree for _, tree in trees]), _jits(cells)
    found = [(cell.name, line, why) for cell, tree in trees for line, why in _disguised(tree, jits)]
    beside = beside_kernels([tree for _, tree in trees], judged, free, jits, meanings)
    unused = _unused([tree for _, tree in trees]) | _loaded([tree for _, tree in trees])
    for cell, tree in trees:
        if cell.name.startswith("setup "):
            continue
        host, lines = [top for top in statements(tree) if top in beside], set()
        binds = set().union(*map(bound_by, statements(tree)))
        to_other = bool(binds & free) and not binds & judged  # tensors compute in the cell of another exercise
        for aliases in meanings:
            unread = unused | _own_operators(tree, aliases) | _harmless(tree, aliases)
            said = [one for top in host for one in _read_host(top, aliases, allowed, methods and not to_other)]
            said += _read(tree, aliases, jits)
            lines |= {(node.lineno, why) for node, why in said if node not in unread}
        found += [(cell.name, line, why) for line, why in sorted(lines)]
    return found


@functools.lru_cache(maxsize=16)
@or_unreadable
def replacing(cells: tuple[Cell, ...]) -> Found:
    """Where the text replaces parts of a library, or looks for a way to. Much less is said here than by `suspicious`:
    answers about the compiler and the dispatcher use private parts of torch.
    """
    trees = [(cell, tree) for cell in cells if (tree := tree_of(cell))]
    meanings = meanings_of([tree for _, tree in trees], renamed=True)
    unused = _unused([tree for _, tree in trees], QUESTIONS) | _loaded([tree for _, tree in trees])
    ours = [(cell, tree) for cell, tree in trees if not cell.name.startswith("setup ")]
    found = [(cell, said) for cell, tree in ours for aliases in meanings for said in _replacing(tree, aliases)]
    return sorted({(cell.name, node.lineno, why) for cell, (node, why) in found if node not in unused})


@or_unreadable
def past_graphs(cells: tuple[Cell, ...]) -> Found:
    """Where the text names what a graph does not look into, where an exercise is about what the graph holds."""
    trees = [(cell, tree) for cell in cells if not cell.name.startswith("setup ") and (tree := tree_of(cell))]
    nodes = [(cell, node) for cell, tree in trees for node in ast.walk(tree) if hasattr(node, "lineno")]
    return sorted(
        (cell.name, node.lineno, f"uses {name}")
        for cell, node in nodes
        for name in PAST_GRAPHS.intersection(re.findall(r"\w+", " ".join(_texts(node))))
    )


def _replacing(tree: ast.Module, aliases: dict[str, str]) -> Iterator[tuple[ast.AST, str]]:
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    set_by_name = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call) and _sets_own(node, aliases)}
    set_by_name |= {name for node in ast.walk(tree) for name in _reads_own(node, aliases)}
    by_part = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    given = _given(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            within = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
            names = [within + one.name for one in node.names]
            yield from ((node, f"imports {name}") for name in names if _leads_to_probes(name))
        elif isinstance(node, ast.Name) and node.id in REPLACING and node.id not in aliases:
            yield from () if node in set_by_name else ((node, f"uses {node.id}"),)
        elif isinstance(node, ast.Attribute) and node.attr in REACHING - (CALLED if node in called else set()):
            yield node, f"uses .{node.attr}"
        elif isinstance(node, ast.Name | ast.Attribute) and dotted_of(node, aliases).startswith(OF_THE_GRADER):
            yield node, f"uses {dotted_of(node, aliases)}"
        elif isinstance(node, ast.Name) and dotted_of(node, aliases) == "autograder" and node not in by_part:
            yield node, "hands autograder on"
        elif _names_dunder(node) in REACHING:
            yield node, f"defines {_names_dunder(node)}"
        elif isinstance(node, ast.MatchClass) and (_is_open(node, given) or not REACHING.isdisjoint(node.kwd_attrs)):
            yield node, "looks something up by a pattern"
        elif _computes_a_type(node):
            yield node, "puts an annotation together"
        elif _asks_for_what_reaches(node):
            yield node, "looks up what leads to other code"
        elif _runs_text(node, aliases):
            yield node, "may run code that stands in a string"
        elif _names_the_grader(node):
            yield node, "names a part of the grader in a string"
        changed = [name for name in _replaced(node, aliases) if not _is_setting(name)]
        if isinstance(node, ast.Subscript) and dotted_of(node.value, aliases) == "os.environ":
            continue  # it holds text alone, and does nothing that `os.environ.update` would not
        yield from ((node, f"replaces {name}") for name in changed)


def _is_setting(name: str) -> bool:
    """`torch._inductor.config.triton.cudagraphs`, and not `torch._inductor.config.torch.compile`."""
    prefix = next((one for one in COMPILERS_SETTINGS if name.startswith(one)), "")
    parts = name.removeprefix(prefix).split(".")
    return bool(prefix) and FOREIGN.isdisjoint(parts) and "torch" not in parts and not any(map(_is_a_dunder, parts))


def _runs_text(node: ast.AST, aliases: dict[str, str]) -> bool:
    """Python's `compile(text, file, mode)`, and a string that holds what would be found in a cell: `timeit` runs it, or
    it is written to a file and imported."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "compile":
        return "compile" not in aliases and len(node.args) + len(node.keywords) > 2
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"[.(= ]", node.value)):
        return False
    tree = tree_of(Cell("", textwrap.dedent(node.value)))
    if not tree:
        return False
    imported = {name: followed(dotted) for name, dotted in imports_of(tree)}
    return any(True for _ in _replacing(tree, aliases | imported))


def _names_the_grader(node: ast.AST) -> bool:
    text = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
    text = text.decode("latin-1") if isinstance(text, bytes) else text
    return isinstance(text, str) and bool(NAMED.search(text))


def _leads_to_probes(name: str) -> bool:
    """A probe that can be named can be replaced, by another name too: `[probe][0].measured = mine`."""
    first, *others = name.split(".")
    if name in BY_ITSELF:
        return False
    return first in LEADING or not REACHING.isdisjoint(others) or name.startswith(OF_THE_GRADER)


def _asks_for_what_reaches(node: ast.AST) -> bool:
    """`"tb_frame.f_globals"`, and a name for `getattr` that is put together."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return not REACHING.isdisjoint(re.split(r"[.\[\]]", node.value)) and node.value not in CALLED
    is_getattr = isinstance(node, ast.Call) and name_of(node.func) == "getattr" and len(node.args) > 1
    return is_getattr and isinstance(node.args[1], ast.BinOp | ast.JoinedStr) and _may_reach(node.args[1])


def _may_reach(name: ast.expr) -> bool:
    """Whether a name that is put together may come to be one that leads to other code; f"allow_{kind}" may not."""
    if isinstance(name, ast.JoinedStr):
        pieces = name.values
    elif isinstance(name, ast.BinOp) and isinstance(name.op, ast.Add):
        pieces = [name.left, name.right]
    else:
        return True
    texts = [one.value if isinstance(one, ast.Constant) else None for one in pieces]
    pieces = (re.escape(text) if isinstance(text, str) else ".*" for text in texts)
    form = "".join(piece for piece, _ in itertools.groupby(pieces))  # two `.*` in a row take a time of their own
    return any(re.fullmatch(form, one) for one in REACHING | TO_PROBES)


def _reads_own(node: ast.AST, aliases: dict[str, str]) -> Iterator[ast.Name]:
    """The `globals` of `globals().get("count")`, `globals()["count"]` and `"count" in globals()`, where that is a name
    of the text's own: a name in another spelling."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        held, name = node.func.value, node.args[0]
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        held, name = node.value, node.slice
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        held, name = node.comparators[0], node.left
    else:
        return
    text = name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else "_"
    if ast.unparse(held) == "globals()" and text not in aliases and not text.startswith("_"):
        yield held.func


def _sets_own(call: ast.Call, aliases: dict[str, str]) -> bool:
    """`setattr(parent, name, layer)` of nothing that was imported: it swaps a layer, as `parent.name = layer` does."""
    if not (isinstance(call.func, ast.Name) and call.func.id == "setattr" and len(call.args) == 3):
        return False
    if isinstance(call.args[1], ast.Constant) and call.args[1].value in REACHING:
        return False
    return aliases.keys().isdisjoint(node.id for node in ast.walk(call.args[0]) if isinstance(node, ast.Name))


@or_unreadable
def added(cells: tuple[Cell, ...], kernels: set[str]) -> Found:
    """Where these kernels, or the functions that they call, add to a number that other programs may add to as well.

    A kernel is found by its name alone: a player makes it from its text, whatever decorates it, and whether or not the
    rest of its cell is Python.
    """
    functions = [(c, n) for c in cells for n in ast.walk(_parsed(c)) if isinstance(n, ast.FunctionDef)]
    by_name: dict[str, list[tuple[Cell, ast.AST]]] = {}
    for cell, node in functions:
        by_name.setdefault(node.name, []).append((cell, node))
    called, todo, atomic = set(kernels), list(kernels), set()
    while todo:
        for cell, node in by_name.get(todo.pop(), ()):
            inside = list(ast.walk(node))
            atomic |= {(cell.name, one.lineno, f"adds by {name_of(one)}") for one in inside if _is_atomic(one)}
            atomic |= {(cell.name, one.lineno, "adds in assembler") for one in inside if _is_ptx(one)}
            own = {one.id for one in inside if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
            made = (one for one in inside if _is_put_together(one, own))
            atomic |= {(cell.name, one.lineno, "puts assembler together") for one in made}
            more = {name_of(one) for one in inside} - called
            called |= more
            todo += more
    return sorted(atomic)


def _jits(cells: tuple[Cell, ...]) -> frozenset[str]:
    return names_of_jit(tuple(cell.source for cell in cells))


def _disguised(tree: ast.AST, jits: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Where a name that stands for triton.jit is given to something else, which then looks like a kernel."""
    names = {name.removesuffix(".jit") for name in jits}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and (_dotted_names(node.value) & jits):
            continue
        given = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        bound = {n.id for one in filter(None, given) for n in ast.walk(one) if isinstance(n, ast.Name)}
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound = {node.name}
        yield from ((node.lineno, f"gives `{name}` another meaning") for name in sorted(bound & names))


def _dotted_names(node: ast.AST) -> set[str]:
    """What an assigned value is called: `jit`, `triton.jit`."""
    return {ast.unparse(node)} if isinstance(node, ast.Name | ast.Attribute) else set()


def _is_atomic(node: ast.AST) -> bool:
    return name_of(node).startswith("atomic_")


def _is_ptx(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and ptx.adds(node.value)


def _is_put_together(node: ast.AST, own: set[str]) -> bool:
    """Assembler that is neither one string nor a name from outside, whose value a program tells, or a string that is
    put together and may become assembler. own: what the kernel names itself."""
    if isinstance(node, ast.Call) and name_of(node.func) == ptx.CALLED:
        texts = [*node.args[:1], *(one.value for one in node.keywords if one.arg == "asm")]
        outside = (isinstance(one, ast.Name) and one.id not in own for one in texts)
        return not all(isinstance(one, ast.Constant) or told for one, told in zip(texts, outside, strict=True))
    parts = (node.left, node.right) if isinstance(node, ast.BinOp) else ()
    return any(isinstance(one, ast.Constant) and isinstance(one.value, str) for one in parts)


def _parsed(cell: Cell) -> ast.Module:
    """As a player reads it; empty for what no parser takes."""
    try:
        return ast.parse(cell.source)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def tree_of(cell: Cell) -> ast.Module | None:
    """None for what no Python runs: `def f(a, a): pass` has a tree."""
    try:
        tree = ast.parse(cell.source)
    except (SyntaxError, ValueError):
        return None
    if not _is_run(cell.source):
        return None
    for node in ast.walk(tree):
        for part in ("body", "orelse", "finalbody"):
            if isinstance(lines := getattr(node, part, None), list):
                setattr(node, part, [one for line in lines for one in _one_each(line)])
    return tree


def _is_run(source: str) -> bool:
    """To compile may warn, so what has a table of names is not."""
    with contextlib.suppress(SyntaxError, ValueError):
        return bool(symtable.symtable(source, "", "exec"))
    return may_run(source)


def _one_each(line: ast.stmt) -> list[ast.stmt]:
    """`import inspect, os` as two statements: each module is judged by itself."""
    names = line.names if isinstance(line, ast.Import) else []
    return [ast.copy_location(ast.Import([one]), line) for one in names] or [line]


def _unused(trees: list[ast.Module], questions: frozenset[str] = frozenset()) -> set[ast.stmt]:
    """Imports that bind nothing but names of `BOUND_ONLY` that no cell mentions, in strings neither.

    questions: functions of inspect that may be called with one argument, `inspect.signature(f)`.
    """
    asked = {part for node in _loaded(trees) for part in ast.walk(node)}
    nodes = [node for tree in trees for node in ast.walk(tree) if node not in asked]
    mentioned = _words(nodes)
    beside_calls = _words([*{*nodes} - _asking(nodes, questions) - (_testing(nodes) if questions else set())])

    def is_unused(node: ast.Import | ast.ImportFrom) -> bool:
        names = {one.name for one in node.names}
        modules = {node.module} if isinstance(node, ast.ImportFrom) else names
        bound = {name for name, _ in imports_of(node)}
        odd = getattr(node, "level", 0) or any(name == "*" or name.startswith("_") for name in bound)
        asks = modules == {"inspect"} and names <= {"inspect", *questions}
        if questions and isinstance(node, ast.Import) and bound == names == {"unittest"}:
            return bound.isdisjoint(beside_calls)
        return not odd and BOUND_ONLY >= modules and bound.isdisjoint(beside_calls if asks else mentioned)

    return {node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) and is_unused(node)}


def _loaded(trees: list[ast.Module]) -> set[ast.AST]:
    """The `sys.modules` of `"google.colab" in sys.modules`, which hands no module out."""
    asked = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Compare) and len(n.ops) == 1]
    asked = [n for n in asked if isinstance(n.ops[0], ast.In | ast.NotIn) and isinstance(n.left, ast.Constant)]
    return {n.comparators[0] for n in asked if ast.unparse(n.comparators[0]) == "sys.modules"}


def _words(nodes: list[ast.AST]) -> set[str]:
    texts = [text for node in nodes if not isinstance(node, ast.alias | ast.ImportFrom) for text in _texts(node)]
    return set(re.findall(r"\w+", " ".join(texts)))


def _asking(nodes: list[ast.AST], questions: frozenset[str]) -> set[ast.AST]:
    """The names that such a call begins with: `signature` of `signature(f)`, `inspect` of `inspect.signature(f)`."""
    calls = [n for n in nodes if isinstance(n, ast.Call) and len(n.args) == 1 and not n.keywords]
    called = [call.func for call in calls if not isinstance(call.args[0], ast.Starred)]
    asked = {func for func in called if isinstance(func, ast.Name) and func.id in questions}
    return asked | {func.value for func in called if isinstance(func, ast.Attribute) and func.attr in questions}


def _testing(nodes: list[ast.AST]) -> set[ast.AST]:
    """The `unittest` of `class T(unittest.TestCase)` and of `unittest.main(argv=[""], exit=False)`."""
    parts = [n for n in nodes if isinstance(n, ast.Attribute) and n.attr in TESTING and isinstance(n.ctx, ast.Load)]
    calls = [n for n in nodes if isinstance(n, ast.Call) and not n.args and {k.arg for k in n.keywords} <= HOW_TO_TEST]
    parts += [n.func for n in calls if isinstance(n.func, ast.Attribute) and n.func.attr == "main"]
    return {part.value for part in parts}


def _own_operators(tree: ast.AST, aliases: dict[str, str]) -> set[ast.AST]:
    """Where `torch.library.custom_op` is called with a name of one's own."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and dotted_of(n.func, aliases) == OPERATOR and n.args]
    names = [(call.func, getattr(call.args[0], "value", None)) for call in calls]
    own = [func for func, name in names if isinstance(name, str) and name.partition("::")[0] not in TORCHS]
    return {part for func in own for part in ast.walk(func)}


def _harmless(tree: ast.AST, aliases: dict[str, str]) -> set[ast.AST]:
    """The names of what is harmless, with what leads to it: `torch.utils` of `torch.utils.checkpoint.checkpoint`."""
    found = [
        node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and dotted_of(node, aliases) in HARMLESS
    ]
    return {part for node in found for part in ast.walk(node)}


def _texts(node: ast.AST) -> Iterator[str]:
    """Names and strings that stand in one node."""
    for _, value in ast.iter_fields(node):
        yield from (part for part in (value if isinstance(value, list) else [value]) if isinstance(part, str))


def _read(tree: ast.AST, aliases: dict[str, str], jits: frozenset[str]) -> Iterator[tuple[ast.AST, str]]:
    """What is out of place in any cell."""
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    pythons, given = _pythons(tree) - aliases.keys(), _given(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, f"imports {one.name}") for one in node.names if _is_foreign(one.name, True))
        elif isinstance(node, ast.ImportFrom):
            full = [f"{node.module or ''}.{one.name}" for one in node.names]
            yield from ((node, f"imports {name}") for name in full if node.level or _is_foreign(name, True))
        elif isinstance(node, ast.Name) and node.id in pythons:
            yield node, f"uses {node.id}"
        elif isinstance(node, ast.Attribute):
            yield from ((node, why) for why in _of_attribute(node, aliases, node in called))
        elif isinstance(node, ast.MatchClass) and (node.kwd_attrs or _is_open(node, given)):
            yield node, f"looks {(node.kwd_attrs or ['something'])[0]} up by a pattern"
        elif _is_dunder(_names_dunder(node)):
            yield node, f"defines {_names_dunder(node)}"
        elif _computes_a_type(node):
            yield node, "puts an annotation together"
        elif isinstance(node, ast.ClassDef):
            bases = [dotted_of(base, aliases) for base in node.bases]
            yield from ((node, f"makes a kind of {b}") for b in bases if "Tensor" in b or "Mode" in b)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _looked_up(node.value):
            yield node, f"a string that may look something up: {_looked_up(node.value)[:40]}"
        if is_kernel(node, jits):
            inside = [n for n in ast.walk(node) if isinstance(n, ast.Attribute) and n.attr in IN_A_KERNEL]
            yield from ((n, f"uses .{n.attr} in a kernel") for n in inside)
        yield from ((node, f"replaces {name}") for name in _replaced(node, aliases))


def _names_dunder(node: ast.AST) -> str:
    """`__match_args__` where it is defined or, in a class body say, bound; else ""."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name
    bound = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and _is_a_dunder(node.id)
    return node.id if bound else ""


def _given(tree: ast.AST) -> set[str]:
    """The names that a text binds, in whatever way but by an import."""
    nodes = list(ast.walk(tree))
    named = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    named |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return named | {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}


def _is_open(pattern: ast.MatchClass, given: set[str]) -> bool:
    """`case Look(x)` asks for the attribute that `Look.__match_args__` names; `case int(x)` asks for none."""
    return bool(pattern.patterns) and name_of(pattern.cls) not in OF_ITSELF - given


def _computes_a_type(node: ast.AST) -> bool:
    """An annotation that calls something or puts text together: what evaluates annotations runs it."""
    types = (getattr(node, "annotation", None), getattr(node, "returns", None))
    parts = [part for one in types if isinstance(one, ast.AST) for part in ast.walk(one)]
    texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    for tree in filter(None, (tree_of(Cell("", text.strip())) for text in texts)):
        parts += ast.walk(tree)
    joins = (isinstance(part, ast.BinOp) and not isinstance(part.op, ast.BitOr) for part in parts)
    return any(joins) or any(isinstance(part, ast.Call | ast.JoinedStr) for part in parts)


def _pythons(tree: ast.AST) -> set[str]:
    """Which of NAMES the cell reads; where no table can be made of it, those that a function calls its own too."""
    try:
        return _outside(symtable.symtable(ast.unparse(tree), "", "exec"))
    except SyntaxError:
        return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & NAMES


def _outside(table: symtable.SymbolTable) -> set[str]:
    """Which of NAMES are read anywhere, but for the arguments and variables of functions."""
    own, here = table.get_type() == "function", map(table.lookup, NAMES.intersection(table.get_identifiers()))
    read = {s.get_name() for s in here if s.is_referenced() and not (own and not s.is_global())}
    return read.union(*map(_outside, table.get_children()))


def _looked_up(text: str) -> str:
    return next((found[0] for found in LOOKED_UP.finditer(text) if found[0] not in DUNDERS), "")


def _of_attribute(node: ast.Attribute, aliases: dict[str, str], called: bool) -> Iterator[str]:
    dotted, root = dotted_of(node, aliases), root_of(node)
    if _is_long(node):
        yield f"follows more than {DEEPEST} attributes in a row"
    elif node.attr in ATTRIBUTES - (CALLED if called else set()) or _is_dunder(node.attr):
        yield f"uses .{node.attr}"
    elif dotted and (_is_foreign(dotted) or dotted.endswith(PARTS)):
        yield f"uses {dotted}"
    elif dotted.startswith(PUBLIC):
        return
    elif node.attr in OF_NAMED_TUPLES and not dotted and isinstance(node.ctx, ast.Load):
        return
    elif node.attr.startswith("_") and root not in OWN and not _is_a_dunder(node.attr):
        yield f"uses {dotted or '.' + node.attr}, a private part"
    elif not isinstance(node.ctx, ast.Load) and not dotted and root not in OWN and node.attr not in SETTABLE:
        yield f"sets or deletes .{node.attr}"


def _is_long(node: ast.AST) -> bool:
    for _ in range(DEEPEST):
        node = getattr(node, "value", None) if isinstance(node, ast.Attribute) else None
    return isinstance(node, ast.Attribute)


def _read_host(
    top: ast.stmt, aliases: dict[str, str], allowed: frozenset[str] = frozenset(), methods: bool = True
) -> Iterator[tuple[ast.AST, str]]:
    """What is out of place in the code that launches kernels. methods: those of tensors too."""
    for node in ast.walk(top):
        if isinstance(node, ast.Name) and node.id in NAMES_NOT_BESIDE_KERNELS:
            yield node, f"uses {node.id} beside a kernel"
        elif isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES_NOT_BESIDE_KERNELS:
            yield node, f"uses .{node.attr} beside a kernel"
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            dotted = dotted_of(node, aliases)
            root, _, rest = dotted.partition(".")
            if any(dotted == part or dotted.startswith(part + ".") for part in NOT_BESIDE_KERNELS):
                yield node, f"uses {dotted} beside a kernel"
            elif root == "torch" and rest and not _may_stand_there(rest) and not _leads(rest, allowed):
                yield node, f"uses {dotted} beside a kernel"
            elif methods and (not dotted or rest.startswith("Tensor.")) and _computes(node, allowed):
                yield node, f"uses .{node.attr} beside a kernel"
        elif isinstance(getattr(node, "op", None), ast.MatMult) and "matmul" not in allowed:
            yield node, "multiplies matrices beside a kernel"
        elif isinstance(node, ast.Try):
            yield node, "catches exceptions beside a kernel"


def _may_stand_there(dotted: str) -> bool:
    """Whether a name of torch has a place beside a kernel: `cuda.current_device`, and not `cuda.torch.softmax`."""
    first, _, rest = dotted.partition(".")
    return (
        first in BESIDE_KERNELS
        and "torch" not in rest.split(".")
        and (not rest or first not in OF_MODULES or rest in OF_MODULES[first] or rest.partition(".")[0] == "device")
    )


def _computes(node: ast.AST, allowed: frozenset[str]) -> bool:
    """`x.softmax` and `out.addmm_`, of whatever it is, but for what an object of the text's own may have."""
    name = node.attr if isinstance(node, ast.Attribute) else ""
    return name.removesuffix("_") not in allowed and root_of(node) not in OWN and name in _computing()


@functools.cache
def _computing() -> set[str]:
    """Methods of tensors that compute; not those that a list, a set or a string has too."""
    import torch  # the process that reads hand-ins has none, and does not ask

    from autograder.judging.proof import ALWAYS

    own = (getattr(torch, name.removesuffix("_"), None) for name in dir(torch.Tensor))
    found = {name for name, one in zip(dir(torch.Tensor), own) if callable(one) and not isinstance(one, type)}
    found -= {name for name in found if {f"aten::{name}", f"aten::{name.removesuffix('_')}"} & ALWAYS}
    return found - BESIDE_KERNELS - {part for kind in (dict, int, list, set, str) for part in dir(kind)} - NOT_COMPUTING


def _leads(dotted: str, allowed: frozenset[str]) -> bool:
    """Whether a name of torch is an allowed operator, or a part of the way to one: nn.functional of linear."""
    parts = ("nn", "nn.functional", *(part for part, runs in OF_MODELS.items() if not runs or runs in allowed))
    return dotted.rpartition(".")[2] in allowed or (bool(allowed) and dotted in parts)


def _is_foreign(name: str, imported: bool = False) -> bool:
    first, *others = name.split(".")
    return name not in HARMLESS and (
        first not in IMPORTS
        or (imported and any(part.startswith("_") and not _is_a_dunder(part) for part in others))
        or not FOREIGN.isdisjoint(others)
        or any(name == part or name.startswith(part + ".") for part in PARTS)
    )


def _is_a_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_dunder(name: str) -> bool:
    return _is_a_dunder(name) and name not in DUNDERS


def _replaced(node: ast.AST, aliases: dict[str, str]) -> Iterator[str]:
    """Attributes of imported things, and names of torch and Triton themselves, that are bound anew here, by whatever
    statement."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        part: ast.AST = ast.Name(node.name)
    elif isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        part = node
    else:
        return
    while isinstance(part, ast.Subscript):
        part = part.value
    dotted = dotted_of(part, aliases)
    own = isinstance(part, ast.Name) and dotted not in ("torch", "triton", "triton.language", "triton.jit")
    if dotted and not own and not dotted.startswith(SETTINGS):
        yield dotted
