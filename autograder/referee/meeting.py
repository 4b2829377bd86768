"""A reading of an answer on several ranks: ways past the network that is watched, and what does the whole work.

As `reading.suspicious`, and like it, it sends a submission to a person and refuses none.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator

import torch
from torch.distributed import distributed_c10d

from autograder.referee import everyday
from autograder.referee.leading import bound_by
from autograder.referee.naming import dotted_of, meanings_of, name_of, root_of
from autograder.referee.reading import Found, or_unreadable, suspicious, tree_of
from autograder.referee.submission import Cell

# Harmless here, and what torch has for the whole of an exercise
AMONG_RANKS = (
    *("sets or deletes .", "uses getattr", "uses .register_hook", "uses torch._utils", "imports torch._utils"),
    *(f"defines __{name}__" for name in "eq ge getattr gt le lt ne".split()),
)
DOING_IT_ALL = set(
    "DistributedDataParallel ZeroRedundancyOptimizer FullyShardedDataParallel fully_shard DistributedOptimizer".split()
)
# What brings numbers from elsewhere than the network: who hides them in a file needs one of these to read it.
BRINGING = set(
    """DataSource FileStore HashStore PrefixStore Store TCPStore fromregex genfromtxt get_sample_data imread load_npz
    loadtxt open_memmap rc_file rc_params_from_file read_csv read_fwf read_html read_json read_table read_xml
    rendezvous""".split()
)
PAST_THE_NETWORK = tuple(
    f"torch.distributed.{part}" for part in "_composable algorithms checkpoint elastic nn optim rpc".split()
)
TAKEN_BY_NAME = {"_C", "load", "os", "save", "sys", "utils"}
DATA = {f"torch.utils.data.{part}" for part in "DataLoader DistributedSampler Dataset TensorDataset".split()}


@or_unreadable
def meeting(cells: tuple[Cell, ...]) -> Found:
    """Where the text of an exercise on several ranks leads past the network that is watched, or to what does its work.

    As `suspicious`, without what those who train write: gradients that are set, hooks, names that changed by version.
    """
    trees = [(cell, tree) for cell in cells if not cell.name.startswith("setup ") and (tree := tree_of(cell))]
    nodes = [(cell, node) for cell, tree in trees for node in ast.walk(tree)]
    harmless = (*AMONG_RANKS, *(f"uses .{name}, a private part" for name in _own_attributes(node for _, node in nodes)))
    found = [one for one in everyday.without(suspicious(cells), cells, DATA) if not one[2].startswith(harmless)]
    meanings = meanings_of([tree for _, tree in trees], renamed=True)
    told = {(cell.name, node.lineno, f"uses {name}") for cell, node in nodes for name in _elsewhere(node, meanings)}
    return [*found, *sorted(told), *handed_on(cells)]


@or_unreadable
def handed_on(cells: tuple[Cell, ...]) -> Found:
    """Modules that are values: in a list, or as an argument, what is taken of them later has no name here."""
    trees = [(cell, tree) for cell in cells if not cell.name.startswith("setup ") and (tree := tree_of(cell))]
    meanings = meanings_of([tree for _, tree in trees], renamed=True)
    modules = {name for _, tree in trees for name in _modules(tree)}
    return sorted(
        (cell.name, node.lineno, f"hands {name} on")
        for cell, tree in trees
        for node, name in _values(tree, meanings, modules)
    )


def _modules(tree: ast.AST) -> Iterator[str]:
    """What `import` alone binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (part for one in node.names for part in (one.name, one.name.split(".")[0]))


def _values(tree: ast.AST, meanings: list[dict[str, str]], modules: set[str]) -> Iterator[tuple[ast.AST, str]]:
    """Where a module stands by itself, and is not given another name alone."""
    nodes = list(ast.walk(tree))
    fine = {node.value for node in nodes if isinstance(node, ast.Attribute)}
    fine |= {node.value for node in nodes if isinstance(node, ast.Assign) and _is_of_names(node)}
    fine |= {node.args[0] for node in nodes if isinstance(node, ast.Call) and _asks_by_name(node)}
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load) and node not in fine:
            found = {dotted_of(node, m) for m in meanings}
            yield from ((node, one) for one in found if one in modules or one in sys.modules)


def _is_of_names(node: ast.Assign) -> bool:
    """`dist = torch.distributed`: its new name means the same."""
    return all(isinstance(target, ast.Name) for target in node.targets)


def _asks_by_name(node: ast.Call) -> bool:
    """`getattr(dist, "all_gather_into_tensor")`, and what asks whether it is there."""
    asks = isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr") and len(node.args) > 1
    return asks and isinstance(node.args[1], ast.Constant)


def _elsewhere(node: ast.AST, meanings: Iterable[dict[str, str]]) -> Iterator[str]:
    """What does the work of a whole exercise or brings numbers past the network, by its name or by a string that
    `getattr` may be given, and the private parts of `torch.distributed`."""
    name = node.name if isinstance(node, ast.alias) else name_of(node)
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
    yield from (one for one in (name, text) if one in DOING_IT_ALL | BRINGING)
    if text.startswith("/tmp"):
        yield f"the file {text[:40]}"
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.distributed"):
        full = [f"{node.module}.{one.name}" for one in node.names]
        yield from (one for one in full if one.rpartition(".")[2].startswith("_") or one.startswith(PAST_THE_NETWORK))
    elif isinstance(node, ast.Import):
        yield from (one.name for one in node.names if one.name.startswith(PAST_THE_NETWORK))
    elif isinstance(node, ast.Attribute):
        yield from {one for m in meanings if (one := dotted_of(node, m)).startswith(PAST_THE_NETWORK)}
        tables = any(dotted_of(node, m).startswith("pandas.read_") for m in meanings) and node.attr not in BRINGING
        if node.attr == "load" or tables:
            yield f".{node.attr}"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr" and node.args:
        imported = {part for m in meanings for part in m}
        looked_up = node.args[1].value if len(node.args) > 1 and isinstance(node.args[1], ast.Constant) else None
        if root_of(node.args[0]) in imported and (looked_up is None or looked_up in TAKEN_BY_NAME):
            yield f"getattr({ast.unparse(node.args[0])}, {looked_up or '...'})"


def _own_attributes(nodes: Iterable[ast.AST]) -> set[str]:
    """What the classes of the text have, and what it gives to objects: the `_left` of `bucket._left = 3`."""
    own: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
        elif isinstance(node, ast.ClassDef):
            own |= set().union(*map(bound_by, node.body))
    known = {*dir(torch.Tensor), *dir(torch.distributed.ProcessGroup)}
    return own - known.union(*map(vars, (torch, torch._C, torch.distributed, distributed_c10d)))
