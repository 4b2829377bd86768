"""AOTAutograd's work: one graph of forward and backward, cut in two, and what crosses the cut.

The joint graph computes results and gradients together. The partitioner gives a part to the forward pass and a part to
the backward pass. What the backward pass needs is either saved, which costs memory, or computed again from what is
saved, which costs time.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import torch

from course_lib.table import Table, bytes_text
from course_lib.torch_inside.events import BACKWARD, FORWARD, JOINT
from course_lib.torch_inside.graphs import Graph, Step, read_graph
from course_lib.torch_inside.watching import Compilation, Watched, short


class Joint(NamedTuple):
    name: str
    computes: str
    type: str
    bytes: int | None
    runs: str  # "forward", "backward", "both", "neither"


class Saved(NamedTuple):
    name: str
    what: str  # "input", the operator that computed it, or "view of" one of these
    type: str
    bytes: int | None
    where: str  # the line of Python it came from


def joint(seen: Watched, compilation: str | None = None) -> Table:
    """Every value of the joint graph, and in which of the two passes it is computed."""
    one = _last(seen, compilation)
    whole = _graph(one, JOINT)
    forward, backward = ({s.name for s in _graph(one, kind).steps} for kind in (FORWARD, BACKWARD))
    rows = []
    for step in whole.steps:
        runs = {(True, False): "forward", (False, True): "backward", (True, True): "both"}
        pair = step.name in forward, step.name in backward
        kind, size = (str(step.kind), step.kind.bytes) if step.kind else ("", None)
        rows.append(Joint(step.name, step.code, kind, size, runs.get(pair, "neither")))
    note = "both: computed again in backward, not saved. neither: changed by a pass between the two prints."
    columns = ("name", "computes", "type", "bytes", "runs in")
    return Table(columns, tuple(rows), caption=f"joint graph of {one.piece}", note=note, code=("computes",))


def saved(seen: Watched, compilation: str | None = None) -> Table:
    """What the forward pass keeps for the backward pass, with bytes.

    Inputs of the function, its weights included, are kept alive but take no new memory. The same holds for their views.
    """
    one = _last(seen, compilation)
    forward, backward = _graph(one, FORWARD), _graph(one, BACKWARD)
    given = {step.name for step in forward.inputs}
    rows, new = [], {}
    for value in backward.inputs:
        if value.name.startswith("tangents") or value.kind is None or value.kind.dtype is None:  # a size is no tensor
            continue
        made = forward.find(value.name) or value
        owner = _owner(forward, made)
        if owner.name not in given:
            new[owner.name] = owner.kind.bytes if owner.kind else None
        where = f"{short(made.file)}:{made.line}" if made.file else ""
        rows.append(Saved(value.name, _what(made, owner, given), str(value.kind), value.kind.bytes, where))
    total = size_text(None if None in new.values() else sum(new.values()))
    note = f"{total} of new memory; inputs and their views are only kept alive."
    columns = ("name", "what", "type", "bytes", "line")
    return Table(columns, tuple(rows), caption=f"saved for backward by {one.piece}", note=note)


def size_text(count: int | None) -> str:
    """2.21 MiB; the bytes of a tensor with a symbolic size are not known."""
    return "depends on a size" if count is None else bytes_text(count)


def _owner(graph: Graph, step: Step) -> Step:
    """The value whose memory this one is, found through views."""
    while is_view(step.code) and (source := graph.find(re.split(r"[(,)]", step.code)[1].strip())):
        step = source
    return step


def is_view(code: str) -> bool:
    """Whether "torch.ops.aten.permute.default(x, [1, 0])" moves no data."""
    call = re.match(r"torch\.ops\.(\w+)\.(\w+)\.(\w+)\(", code)
    if not call:
        return False
    packet = getattr(getattr(torch.ops, call[1]), call[2], None)
    overload = getattr(packet, call[3], None)
    return overload is not None and overload.is_view


def _what(made: Step, owner: Step, given: set[str]) -> str:
    kind = "input" if owner.name in given else owner.operator or "made by a pass"
    return kind if made is owner else f"view of {kind}"


def _last(seen: Watched, compilation: str | None) -> Compilation:
    found = [c for c in seen.expect(JOINT) if c.of(JOINT) and compilation in (None, c.id)]
    if not found:
        raise ValueError("nothing that needs a gradient was compiled: no joint graph was made")
    return found[-1]


def _graph(one: Compilation, kind: str) -> Graph:
    return read_graph(one.of(kind)[-1].text)
