"""One function on its way through the compiler, cut down to what a picture can hold."""

from __future__ import annotations

import dis
import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from course_lib.torch_inside.bytecode import SILENT, graphs
from course_lib.torch_inside.guards import guards
from course_lib.torch_inside.kernels import Kernel, kernels
from course_lib.torch_inside.phases import AOT, COMPILER, DYNAMO, GUARDS, INDUCTOR, PASSES, phases
from course_lib.torch_inside.saved import is_view, joint, saved, size_text
from course_lib.torch_inside.watching import Watched


@dataclass(frozen=True)
class Flow:
    """What each station got and gave. Texts are lines as a reader would write them."""

    source: tuple[str, ...]  # the function
    instructions: int  # of its bytecode
    graph: tuple[str, ...]  # the steps that Dynamo captured
    guards: tuple[str, ...]  # "x: be a float32 tensor ..."
    forward: tuple[str, ...]  # operators of the forward graph, "mul ×3" for three of a kind; no views
    backward: tuple[str, ...]
    again: int  # operators of the forward graph that backward computes once more
    saved: tuple[str, ...]  # "mm 2 MiB": new memory that crosses from forward to backward
    forward_kernels: tuple[str, ...]
    backward_kernels: tuple[str, ...]
    code: tuple[str, ...]  # what the first forward kernel loads, computes and stores
    language: str  # "C++" or "Triton"
    seconds: dict[str, float]  # station -> seconds: "Dynamo", "AOTAutograd", "Inductor", the language


def flow(fn: Callable, seen: Watched) -> Flow:
    """The way of a function that was compiled as one graph, with its backward pass."""
    fn = inspect.unwrap(fn)
    values, written = [row for row in joint(seen) if not is_view(row.computes)], kernels(seen)
    language = next((row.language for row in written if row.language != "library"), "library")
    took = {row.part: row.seconds for row in phases(seen)}
    stations = {"Dynamo": (DYNAMO, GUARDS), "AOTAutograd": (AOT, PASSES), "Inductor": (INDUCTOR,)}
    stations[language] = (COMPILER,)
    return Flow(
        source=tuple(textwrap.dedent(inspect.getsource(fn)).strip().split("\n")),
        instructions=sum(one.opname not in SILENT for one in dis.get_instructions(fn)),
        graph=tuple(f"{step.name} = {step.code}" for graph in graphs(seen) for step in graph.steps if step.file),
        guards=tuple(f"{row.what} must {row.must}" for row in guards(seen)),
        forward=_kinds([row.computes for row in values if row.runs in ("forward", "both")]),
        backward=_kinds([row.computes for row in values if row.runs in ("backward", "both")]),
        again=sum(row.runs == "both" for row in values),
        saved=tuple(f"{row.name} {size_text(row.bytes)}" for row in saved(seen) if "input" not in row.what),
        forward_kernels=_names(written, "forward"),
        backward_kernels=_names(written, "backward"),
        code=_arithmetic(written),
        language=language,
        seconds={name: sum(took.get(part, 0.0) for part in parts) for name, parts in stations.items()},
    )


def _kinds(calls: Sequence[str]) -> tuple[str, ...]:
    """torch.ops.aten.mul.Tensor(...) three times -> "mul ×3", in the order in which kinds first come."""
    names = [call.partition("(")[0].removeprefix("torch.ops.").split(".") for call in calls]
    counted = Counter(parts[1] if len(parts) > 1 else parts[0] for parts in names)
    return tuple(name if count == 1 else f"{name} ×{count}" for name, count in counted.items())


def _names(written: Sequence[Kernel], runs: str) -> tuple[str, ...]:
    """Kernels by name; what is left to a library says so."""
    chosen = [row for row in written if row.runs == runs]
    return tuple(f"{row.name.rpartition('.')[2]}, library" if not row.code else row.name for row in chosen)


def _arithmetic(written: Sequence[Kernel]) -> tuple[str, ...]:
    """The lines about values, `tmp7 = ...` and what is done with them, without loops and indices."""
    own = next((row.code for row in written if row.runs == "forward" and row.code), "")
    return tuple(line.strip() for line in own.split("\n") if re.search(r"\btmp\d+", line))
