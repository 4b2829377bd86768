"""A backend of torch.compile at work: what the compiled program computes, and what the backend counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from course_lib.torch_inside.reuse import fresh, settings


def program(source: str) -> Callable:
    return fresh(source, torch=torch, F=F, checkpoint=checkpoint)


def inputs(call: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, 4) and w (4, 4); one seed gives the same values in every process."""
    generator = torch.Generator().manual_seed(call["seed"])
    return torch.randn(call["rows"], 4, generator=generator), torch.randn(4, 4, generator=generator)


def counted(make: Callable, source: str, calls: Sequence[Mapping]) -> tuple[list[list[float]], dict[str, int]]:
    """What the program returns in each call when it is compiled by `make(counts)`, and the counts afterwards."""
    counts: dict[str, int] = {}
    backend = make(counts)
    if not callable(backend):
        raise TypeError(f"expected a backend, a function of a graph and its inputs, got {type(backend).__name__}")
    with settings(recompile_limit=8):
        compiled = torch.compile(program(source), backend=backend)
        results = [compiled(*inputs(call)).reshape(-1).tolist() for call in calls]
    return results, {str(name): count for name, count in counts.items()}
