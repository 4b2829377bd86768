"""The path of one call through the dispatcher: its keys, who brought them, and what each of them does with it.

torch itself says which keys a call has at this moment, and what is registered for each of them. torch has no table of
what a kernel then does: some record the call and pass it on, others end it. `_HABITS` holds that knowledge, and a test
compares it with a real operator that records which kernels it passes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import torch

from course_lib.table import Table
from course_lib.torch_inside import keysets

__all__ = ["STATES", "Registered", "Station", "call_path", "registered"]

STATES = ("runs", "lands", "passes on", "excluded", "not reached", "missing")
_FALLBACK = "backend fallback"  # registered for the key once, for all operators


class Station(NamedTuple):
    key: str
    brought_by: str  # "x, y, thread"
    state: str  # one of STATES
    does: str
    registered: str  # "autograd kernel"
    file: str  # where that is registered: "VariableType_2.cpp"


class Registered(NamedTuple):
    key: str
    kind: str  # "kernel", "autograd kernel", "math kernel", "default backend kernel", "backend fallback"
    passes_on: bool
    file: str


# (start of a key, what its kernels do, whether they pass the call on to the keys below). The first that fits counts.
_HABITS = (
    ("PythonTLSSnapshot", "remembers the state of the thread for Python", True),
    ("FuncTorchDynamicLayerFrontMode", "gives the call to the innermost transform of torch.func", False),
    ("Autocast", "casts the arguments, calls without this key", True),
    ("Autograd", "notes what backward needs, if a gradient is required", True),
    ("ADInplaceOrView", "counts a write, or notes whose view the result is", True),
    ("Conjugate", "carries out the conjugation", True),
    ("Negative", "carries out the negation", True),
    ("Functionalize", "unwraps, calls what writes into nothing, wraps", False),
    ("Python", "calls __torch_dispatch__ of a mode or of a tensor", False),
    ("BackendSelect", "reads the device and calls with its key", False),
)


def registered(op) -> dict[str, Registered]:
    """What the dispatch table of an operator (torch.ops.aten.add.Tensor) has for each key."""
    rows = {}
    for line in torch._C._dispatch_dump_table(op.name()).splitlines():
        key, _, said = line.partition(": ")
        if found := re.fullmatch(r"(fallthrough )?registered at (\S+?)(?::\d+)? \[(.+)\]", said):
            file = found[2].rpartition("/")[2]
            file = "a cell" if re.fullmatch(r"\d+\.py", file) else file  # as a notebook names its cells
            rows[key] = Registered(key, found[3], bool(found[1]), file)
    return rows


def call_path(op, **tensors: torch.Tensor) -> Table:
    """The keys of `op(x, y)`, highest priority first: call_path(torch.ops.aten.add.Tensor, x=x, y=y)."""
    sources = {name: torch._C._dispatch_keys(one) for name, one in tensors.items()}
    sources["thread"] = torch._C._dispatch_tls_local_include_set()
    every = sources["thread"]
    for keys in sources.values():
        every = every | keys
    left = set(keysets.in_order(every - torch._C._dispatch_tls_local_exclude_set()))
    table, rows, over = registered(op), [], False
    for key in keysets.in_order(every):
        state, does = _state(key, table.get(key), key in left, over)
        over = over or state in ("lands", "missing")
        brought = ", ".join(name for name, keys in sources.items() if key in keysets.in_order(keys))
        rows.append(Station(key, brought, state, does, *_entry_in_words(table.get(key))))
    columns = ("key", "brought by", "state", "what happens", "registered", "in")
    return Table(columns, tuple(rows), caption=f"{op.name()}: {_summary(rows)}")


def _state(key: str, entry: Registered | None, is_left: bool, over: bool) -> tuple[str, str]:
    if not is_left:
        return "excluded", "this thread excludes it"
    if over:
        return "not reached", ""
    if entry is None:
        return "missing", "raises NotImplementedError"
    if entry.passes_on:
        return "passes on", ""
    if entry.kind == "math kernel":
        return "lands", "calls other operators, each a call of its own"
    if entry.kind == _FALLBACK and key.startswith("Autograd"):
        return "runs", "knows no gradient, and backward will warn"
    does, goes_on = next((habit[1:] for habit in _HABITS if key.startswith(habit[0])), ("computes", False))
    return ("runs" if goes_on else "lands"), does


def _entry_in_words(entry: Registered | None) -> tuple[str, str]:
    if entry is None:
        return "nothing", ""
    many = " for all operators" * (entry.kind == _FALLBACK)
    return ("fallthrough" if entry.passes_on else "kernel" if many else entry.kind) + many, entry.file


def _summary(rows: list[Station]) -> str:
    met = [row for row in rows if row.state != "excluded"]
    run = [row for row in met if row.state in ("runs", "lands")]
    ends = next((row.key for row in met if row.state == "lands"), None)
    keys = f"{len(met)} key{'s' * (len(met) != 1)}, {len(run)} kernel{'s run' if len(run) != 1 else ' runs'}"
    return f"{keys}, {ends} is the last" if ends else f"{keys}, and none is left"
