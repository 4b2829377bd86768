"""A small program as an FX graph, before and after a pass: what it computes and which operators it calls.

A program is a list of steps, {"name": "t0", "op": "mul", "args": ["x0", "x1"], "kwargs": {}}: plain data, from which
the same graph can be built in two processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

FUNCTIONS = {"mul": torch.mul, "add": torch.add, "sub": torch.sub, "sin": torch.sin, "neg": torch.neg}
METHODS = ("add_",)  # writes into its first argument; its value is not used


def build(steps: Sequence[Mapping], inputs: Sequence[Mapping], outputs: Sequence[str]) -> fx.GraphModule:
    """The program as a graph of `call_function` and `call_method` nodes; `meta["val"]` has each value's type and shape.

    The values in `meta` are on the device "meta": they have no data.
    """
    graph, nodes = fx.Graph(), {}
    for one in inputs:
        nodes[one["name"]] = graph.placeholder(one["name"])
        nodes[one["name"]].meta["val"] = torch.empty(one["shape"], dtype=getattr(torch, one["dtype"]), device="meta")
    for step in steps:
        args, kwargs = tuple(nodes.get(a, a) for a in step["args"]), dict(step.get("kwargs", {}))
        method = step["op"] in METHODS
        kind, target = ("call_method", step["op"]) if method else ("call_function", FUNCTIONS[step["op"]])
        node = nodes[step["name"]] = graph.create_node(kind, target, args, kwargs, name=step["name"])
        values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in args]
        node.meta["val"] = (getattr(values[0], target) if method else target)(*values[1 if method else 0 :], **kwargs)
    graph.output(tuple(nodes[name] for name in outputs))
    return fx.GraphModule(torch.nn.Module(), graph)


def values(inputs: Sequence[Mapping]) -> list[torch.Tensor]:
    """The inputs; one seed gives the same values in every process. Large enough that rounding to a type shows."""
    made = []
    for one in inputs:
        generator = torch.Generator().manual_seed(one["seed"])
        numbers = torch.randn(one["shape"], generator=generator, dtype=torch.float64) * 30
        made.append(numbers.to(getattr(torch, one["dtype"])))
    return made


class _Calls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[func.name().partition("::")[2].partition(".")[0]] += 1
        return func(*args, **(kwargs or {}))


def run(module: fx.GraphModule, inputs: Sequence[Mapping]) -> tuple[list[dict], dict[str, int]]:
    """What the module returns, and the operators that it called."""
    given = values(inputs)
    with _Calls() as calls:
        results = module(*given)
    if not isinstance(results, tuple):
        raise TypeError(f"the rewritten module returns a {type(results).__name__}, and returned a tuple before")
    return [_plain(r) for r in results], _counted(calls.seen)


def rewritten(function: Callable, steps, inputs, outputs) -> tuple[list[dict], dict[str, int], dict[str, int]]:
    """The program after `function(module)`: what it returns, the operators it calls, the operators in its graph."""
    module = function(build(steps, inputs, outputs))
    if not isinstance(module, fx.GraphModule):
        raise TypeError(f"expected the rewritten GraphModule, got {type(module).__name__}")
    module.graph.lint()
    in_graph = Counter(_name(node) for node in module.graph.nodes if node.op.startswith("call_"))
    return *run(module, inputs), _counted(in_graph)


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _counted(seen: Counter[str]) -> dict[str, int]:
    return {name: seen.get(name, 0) for name in ("mul", "add", "addcmul")}


def _plain(tensor: Any) -> dict:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"the rewritten module returns a {type(tensor).__name__} where it returned a tensor")
    numbers = tensor.detach().to(torch.float64).reshape(-1).tolist()
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "values": numbers}
