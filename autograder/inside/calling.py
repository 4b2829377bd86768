"""Calling a submission's function: quietly, counting launches, and describing what it raised.

Used by `check` in a notebook and by the referee's worker.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton

_COURSE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Lines that are not the submission's. The simulator and the interpreter of course_lib raise for the line that called
# them. The course has the same path in a sandbox.
OUR_FRAMES = (
    *(os.path.join(_COURSE, room) for room in ("autograder", "course_lib")),
    "/site-packages/",
    "/lib/python3",
)

# where an exercise hides them, both are empty folders: there is no device to wait for and no launch to count
_TORCH, _TRITON = hasattr(torch, "cuda"), hasattr(triton, "knobs")


class Found(ValueError):
    """What a probe found wrong with a call that ended well; a report says it as such."""


@dataclass(frozen=True)
class Answer:
    """What came back from one call."""

    value: Any = None
    error: str | None = None  # "TypeName: message"
    where: str | None = None  # the line of the submission that raised
    launches: int = 0  # Triton kernels launched
    seconds: float = 0.0


def through(probe: str, function: Callable) -> Callable:
    """What is called in place of the function where an exercise has a probe ("module:name" of the course)."""
    module, _, name = probe.partition(":")
    return partial(getattr(importlib.import_module(module), name), function) if probe else function


def call(function: Callable, args: Sequence[Any], counted: bool = True) -> Answer:
    """One call; an exception is an answer too. Counting launches costs a few microseconds each."""
    start = time.perf_counter()
    with quiet(), counted_launches() if counted else contextlib.nullcontext([]) as launches:
        try:
            value = function(*args)
            if _TORCH and torch.cuda.is_initialized():
                torch.cuda.synchronize()
        except Exception as error:
            return Answer(None, describe(error), where(error), len(launches), time.perf_counter() - start)
    return Answer(value, None, None, len(launches), time.perf_counter() - start)


@contextlib.contextmanager
def counted_launches() -> Iterator[list]:
    """The Triton launches inside the block, on either tier."""
    seen: list = []
    if not _TRITON:
        yield seen
        return
    if triton.knobs.runtime.interpret:
        from course_lib import interpreter

        with interpreter.launches() as seen:
            yield seen
        return

    def note(metadata):
        seen.append(metadata)

    hooks = triton.knobs.runtime.launch_enter_hook
    hooks.add(note)
    try:
        yield seen
    finally:
        hooks.remove(note)


@contextlib.contextmanager
def trials(launches: list) -> Iterator[list]:
    """A list that holds something while an autotuner tries its settings out. `launches` keeps none of those trials."""
    tuner = triton.runtime.Autotuner
    bench, now = tuner._bench, []

    def tried(*args, **kwargs):
        before = len(launches)
        now.append(True)
        try:
            return bench(*args, **kwargs)
        finally:
            now.pop()
            del launches[before:]

    tuner._bench = tried
    try:
        yield now
    finally:
        tuner._bench = bench


_stderr = threading.RLock()  # it belongs to all threads, so one at a time may redirect it


@contextlib.contextmanager
def quiet() -> Iterator[io.StringIO]:
    """Keep warnings and stderr out of the cell: one line there would make stock nbgrader give zero."""
    with _stderr, warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()) as text:
        warnings.simplefilter("ignore")
        yield text


def _root(error: BaseException) -> BaseException:
    """The first cause: Triton wraps what went wrong inside a kernel in its own exception."""
    while (inner := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        error = inner
    return error


def describe(error: Exception) -> str:
    root = _root(error)
    text = str(root).strip() or "no message"
    if text.startswith("CUDA error"):
        text = text.splitlines()[0]  # the other lines say how to debug torch
    return f"{type(root).__name__}: {text}"[:600]


def where(error: Exception) -> str | None:
    """The innermost line that belongs to the submission rather than to a library."""
    frames = [f for e in (error, _root(error)) for f in traceback.extract_tb(e.__traceback__)]
    own = [f for f in frames if f.line and not any(place in f.filename for place in OUR_FRAMES)]
    return f"line {own[-1].lineno}: {own[-1].line}" if own else None
