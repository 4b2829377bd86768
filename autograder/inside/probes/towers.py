"""A vision tower under torch.compile, as plain data: results, graphs, what was compiled again, why graphs ended, and
what a graph calls that no compiler can look into.
"""

from __future__ import annotations

import contextlib
import io
import math
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from autograder.inside.calling import Found
from autograder.inside.probes.belonging import module_of
from course_lib import torch_inside
from course_lib.models.broken_tower import PATCH, Tower
from course_lib.models.siglip.frame import unpacked
from course_lib.torch_inside.reuse import settings


def make(kind: Callable[..., torch.nn.Module], config: Mapping[str, Any]) -> torch.nn.Module:
    """A tower in float64 with weights that one seed makes equal in every process, whatever it keeps besides."""
    sizes = {name: value for name, value in config.items() if name != "seed"}
    return with_weights(kind(**sizes), Tower(**sizes), config["seed"])


def with_weights(made: torch.nn.Module, given: torch.nn.Module, seed: int) -> torch.nn.Module:
    """The tower in float64, with weights that are drawn by the names of another one's: it knows all of them.

    A layer of its own for q, k and v at once may give the three back as one.
    """
    given = drawn(given.double(), seed)
    if not isinstance(made, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module with the tower's weights, got {type(made).__name__}")
    made = made.double()
    missing, _ = made.load_state_dict(given.state_dict(), strict=False)
    unknown = sorted(set(given.state_dict()) - set(unpacked(made.state_dict())))
    if missing or unknown:
        raise TypeError(f"the tower's weights should keep their names: {[*missing, *unknown][0]!r} is not there")
    return made.eval()


def drawn(tower: torch.nn.Module, seed: int) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in tower.parameters():
            weights.copy_(torch.randn(weights.shape, generator=generator, dtype=torch.float64) * 0.6)
    return tower


def patches(call: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(call["seed"])
    lengths = torch.tensor(call["lengths"])
    return torch.randn(len(lengths), call["patches"], PATCH, generator=generator, dtype=torch.float64), lengths


def run(tower: Callable, calls: Sequence[Mapping]) -> list[list[list[float]]]:
    """The results as the tower stands, without a compiler."""
    with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        return [tower(*patches(call)).tolist() for call in calls]


def compiled(kind: Callable, config: Mapping, calls: Sequence[Mapping]) -> tuple[list, dict[str, Any]]:
    """The results of a compiled tower, and its graphs: of the first call, compiled later, why graphs ended, and what
    they call that is not torch's own.
    """
    with torch.no_grad():
        seen = captured(make(kind, config), [patches(call) for call in calls], torch.Tensor.tolist)
    return seen.kept, seen.graphs()


class Graph:
    """One graph that Dynamo captured, and what it was first called with."""

    def __init__(self, module: fx.GraphModule):
        self.module, self.inputs = module, None

    def __call__(self, *inputs):
        self.inputs = inputs if self.inputs is None else self.inputs
        return self.module.forward(*inputs)


@dataclass
class Captured:
    """What became of the calls of a compiled tower."""

    kept: list[Any]  # of each result
    captured: list[Graph]
    first: int  # graphs of the first call
    ended: list[str]  # why graphs ended

    def graphs(self) -> dict[str, Any]:
        opaque = list(dict.fromkeys(name for graph in self.captured for name in _opaque(graph.module)))
        later = len(self.captured) - self.first
        return {"first": self.first, "later": later, "ended": self.ended, "opaque": opaque}


def captured(tower: torch.nn.Module, calls: Sequence[tuple[torch.Tensor, ...]], keep: Callable) -> Captured:
    """Compile the tower, call it, and keep of each result what `keep` makes of it at once.

    The number of images may be dynamic from the first call on. Dynamo alone works; what it captures runs as it is.
    Dynamo begins from nothing, so whatever this process had compiled before is compiled again when it is next called.
    """
    kept, graphs = [], []

    def backend(module, inputs):
        graphs.append(Graph(module))
        return graphs[-1]

    first = 0
    _no_mode_is_on()
    torch._dynamo.reset()
    silent = contextlib.redirect_stdout(io.StringIO())
    with settings(recompile_limit=64), silent, torch_inside.watch() as seen:
        fast = torch.compile(tower, backend=backend)
        for number, given in enumerate(calls):
            for tensor in given:
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
            result = fast(*given)
            _no_mode_is_on()
            if type(result) is not torch.Tensor:  # anything else could compute after the graph
                raise TypeError(f"expected a tensor, got {type(result).__name__}")
            kept.append(keep(result))
            first = first if number else len(graphs)
    ended = list(dict.fromkeys(row.reason[:300] for row in torch_inside.breaks(seen)))
    return Captured(kept, graphs, first, ended)


def _no_mode_is_on() -> None:
    """One that was entered and not left would answer in place of what is looked at."""
    on = [*torch.overrides._get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    left = [type(mode).__name__ for mode in on if type(mode) is not DeviceContext]  # of torch.set_default_device
    if left:
        raise Found(f"a {left[-1]} was entered and not left: a call leaves no mode on")


# torch's own operators that take a function, and of which Dynamo captures that function as a graph too
OF_GRAPHS = set(
    """associative_scan autograd_function_apply cond flex_attention map map_impl scan tag_activation_checkpoint
    while_loop wrap wrap_activation_checkpoint wrap_with_autocast wrap_with_set_grad_enabled""".split()
)
OPERATORS = torch._ops.OpOverload, torch._ops.OpOverloadPacket
PYTHONS = abs, divmod, getattr, len, max, min, pow, round, sum
PYTHONS += tuple(one for name, one in (vars(operator) | vars(math)).items() if callable(one) and name != "call")


def _opaque(module: fx.GraphModule) -> list[str]:
    """What a graph, or one inside of it, calls that is neither torch's nor Python's: an operator of one's own, whose
    kernel may do anything.
    """
    parts = [part for part in module.modules() if isinstance(part, fx.GraphModule)]
    nodes = [(part, node) for part in parts for node in part.graph.nodes]
    called = [part.get_submodule(n.target) if n.op == "call_module" else n.target for part, n in nodes if _calls(n)]
    return [_name(target)[:80] for target in called if not _is_own(target)]


def _calls(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_module")


def _name(target: Any) -> str:
    return str(target) if isinstance(target, OPERATORS) else getattr(target, "__name__", type(target).__name__)


def _is_own(target: Any) -> bool:
    """By what the target is, not by what it says of itself: anybody can write `__module__ = "builtins"`."""
    kind = type(target)
    if issubclass(kind, torch._ops.HigherOrderOperator):
        return module_of(kind).startswith("torch.") and target.name() in OF_GRAPHS
    if issubclass(kind, OPERATORS):
        return _is_of_aten(target)
    if issubclass(kind, torch.nn.Module):  # a layer of torch's, with nothing put into its place or before it
        changed = "forward" in vars(target) or target._forward_hooks or target._forward_pre_hooks
        is_whole = module_of(kind).startswith("torch.nn.modules.") and next(target.children(), None) is None
        return is_whole and not changed
    if kind in (types.MethodDescriptorType, types.WrapperDescriptorType):
        return target.__objclass__ in torch.Tensor.__mro__
    return any(target is one for one in PYTHONS) or f"{module_of(target)}.".startswith("torch.")


def _is_of_aten(target: Any) -> bool:
    """Whether it is the operator that torch has by this name, and its kernels were not put there by Python."""
    name, _, overload = str(target).removeprefix("aten.").partition(".")
    packet = getattr(torch.ops.aten, name, None)
    if target is packet:
        target = getattr(packet, packet.overloads()[0])
    elif target is not getattr(packet, overload, None):
        return False
    where = torch._C._dispatch_dump(target.name()).partition("debug: ")[2].partition("\n")[0]
    return ".cpp:" in where
