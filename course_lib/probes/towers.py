"""A vision tower under torch.compile, as plain data: results, graphs, what was compiled again, why graphs ended."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from course_lib import tracing
from course_lib.models.broken_tower import PATCH, Tower
from course_lib.tracing.reuse import settings


def make(kind: Callable[..., torch.nn.Module], config: Mapping[str, Any]) -> torch.nn.Module:
    """A tower in float64 with weights that one seed makes equal in every process, whatever it keeps besides."""
    sizes = {name: value for name, value in config.items() if name != "seed"}
    given = Tower(**sizes).double()
    generator = torch.Generator().manual_seed(config["seed"])
    with torch.no_grad():
        for weights in given.parameters():
            weights.copy_(torch.randn(weights.shape, generator=generator, dtype=torch.float64) * 0.6)
    made = kind(**sizes)
    if not isinstance(made, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module with the tower's weights, got {type(made).__name__}")
    made = made.double()
    missing, _ = made.load_state_dict(given.state_dict(), strict=False)
    unknown = sorted(set(given.state_dict()) - set(made.state_dict()))
    if missing or unknown:
        raise TypeError(f"the tower's weights should keep their names: {[*missing, *unknown][0]!r} is not there")
    return made.eval()


def patches(call: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(call["seed"])
    lengths = torch.tensor(call["lengths"])
    return torch.randn(len(lengths), call["patches"], PATCH, generator=generator, dtype=torch.float64), lengths


def run(tower: Callable, calls: Sequence[Mapping]) -> list[list[list[float]]]:
    """The results as the tower stands, without a compiler."""
    with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        return [tower(*patches(call)).tolist() for call in calls]


def compiled(kind: Callable, config: Mapping, calls: Sequence[Mapping]) -> tuple[list, dict[str, Any]]:
    """The results of a compiled tower, and its graphs: of the first call, compiled later, and why graphs ended.

    The number of images may be dynamic from the first call on. Dynamo alone works; what it captures runs as it is.
    Dynamo begins from nothing, so whatever this process had compiled before is compiled again when it is next called.
    """
    tower, results, graphs = make(kind, config), [], []

    def backend(module, inputs):
        graphs.append(module)
        return module.forward

    first = 0
    torch._dynamo.reset()
    silent = contextlib.redirect_stdout(io.StringIO())
    with settings(recompile_limit=64), torch.no_grad(), silent, tracing.watch() as seen:
        fast = torch.compile(tower, backend=backend)
        for number, call in enumerate(calls):
            given = patches(call)
            for tensor in given:
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
            results.append(fast(*given).tolist())
            first = first if number else len(graphs)
    ended = list(dict.fromkeys(row.reason[:300] for row in tracing.breaks(seen)))
    return results, {"first": first, "later": len(graphs) - first, "ended": ended}
