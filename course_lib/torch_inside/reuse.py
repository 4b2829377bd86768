"""Which calls of a compiled function compile, and which use code that is there: asked of torch, not computed."""

from __future__ import annotations

import itertools
import linecache
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

SOURCE = "def f(x):\n    return x.sin() * 2\n"
_number = itertools.count()


def compiles(
    calls: Sequence[Mapping[str, Any]], dynamic: bool | None = None, marked: Sequence[int] = (), limit: int = 8
) -> list[bool]:
    """For each call of `f(x) = x.sin() * 2` whether `torch.compile(f, dynamic=dynamic)` compiled for it.

    A call is {"shape": [rows, columns], "dtype": "float32", "needs_grad": False}. `marked`: dimensions of every tensor
    given to `mark_dynamic`. `limit`: `torch._dynamo.config.recompile_limit`. Other settings are torch's own, and what
    this process has compiled before stays as it is.
    """
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    with settings(recompile_limit=limit):
        compiled = torch.compile(fresh(SOURCE), backend=backend, dynamic=dynamic)
        told = [_compiled_one(compiled, call, marked, graphs) for call in calls]
    if told and not told[0]:
        raise RuntimeError("expected the first call to compile, and torch compiled nothing for it")
    return told


def _compiled_one(compiled, call: Mapping[str, Any], marked: Sequence[int], graphs: list) -> bool:
    before, dtype = len(graphs), getattr(torch, call.get("dtype", "float32"))
    x = torch.zeros(call["shape"], dtype=dtype, requires_grad=call.get("needs_grad", False))
    for dimension in marked:
        torch._dynamo.mark_dynamic(x, dimension)
    compiled(x)
    return len(graphs) > before


def fresh(source: str, **names: Any) -> Callable:
    """The function `f` of a few lines of Python, under a file name that Dynamo has never seen.

    Dynamo remembers sizes by file and line, also for functions that no longer exist. The source is registered in
    linecache because torch 2.11 puts a wrapper around a function without source, and counts all such wrappers as one
    function, whose limit of compilations is soon reached.
    """
    path = f"<fresh {next(_number)}>"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    exec(compile(source, path, "exec"), names)
    return names["f"]


@contextmanager
def settings(**changed):
    """Torch's own settings for what is dynamic, but for those given; silent when a limit is reached."""
    import torch._dynamo  # slow to import, so only where something is compiled

    own = {"assume_static_by_default": True, "automatic_dynamic_shapes": True, "error_on_recompile": False}
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with torch._dynamo.config.patch({**own, **changed}):
            yield
    finally:
        logging.disable(disabled)
