"""Listening to torch's compiler. The only file of this package that reaches into torch.

While torch compiles, it can write a structured record of every step: the graph that Dynamo captured, the guards, why a
graph ended, what AOTAutograd made of the graph, the code that Inductor wrote, how long each part took.
`TORCH_TRACE=folder` puts the record on disk, and the tool tlparse turns it into a report. No other view of the compiler
is meant to be read by a program. Here a handler on the same logger takes the entries as they are written.

Private are: the name of the logger, the names of the entries, and Inductor's setting that lets a kernel remember its
lines of Python. All three were compared in the sources of torch 2.11 and 2.13. Where one is missing, `listen` or
`Watched.expect` says so, with the version; no view goes on with half of the record.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

LOGGER = "torch.__trace"
PROVEN = "2.11 and 2.13"

# The kinds of entries that the views read. They are constants, so a misspelt kind fails at once and does not look like
# an entry that torch no longer writes.
METRICS = "compilation_metrics"  # one at the end of every compilation: name, line, counts, seconds
GRAPH = "dynamo_output_graph"
BREAK = "dynamo_graph_break_reason"
GUARDS = "dynamo_cpp_guards_str"
RECOMPILED = "recompile_reasons"
JOINT, FORWARD, BACKWARD = "aot_joint_graph", "aot_forward_graph", "aot_backward_graph"
CODE = "inductor_output_code"
LINES = "inductor_provenance_tracking_kernel_stack_traces"  # kernel -> the lines of Python it computes
SPAN = "chromium_event"  # where a part of the work begins and ends


@dataclass(frozen=True)
class Event:
    """One entry of the record."""

    kind: str
    compilation: str | None  # "0/1": piece 0 of the program, compiled for the second time
    attempt: int  # Dynamo begins a piece again when it learns something on the way
    data: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""


class _Listener(logging.Handler):
    def __init__(self):
        super().__init__()
        self.events: list[Event] = []

    def emit(self, record: logging.LogRecord) -> None:
        metadata = getattr(record, "metadata", None)
        if metadata:
            self.events.append(_event(metadata, getattr(record, "payload", None)))


def _event(metadata: Mapping[str, Any], payload: Any) -> Event:
    kind, data = next(iter(metadata.items()))
    if kind == "artifact":  # the kind of many entries; their names tell them apart
        kind = data["name"]
    text = payload if isinstance(payload, str) else "" if payload is None else json.dumps(payload)
    # an entry without frame_id belongs to no compilation
    frame, again = metadata.get("frame_id"), metadata.get("frame_compile_id", 0)
    where = None if frame is None else f"{frame}/{again}"
    return Event(kind, where, metadata.get("attempt", 0), data if isinstance(data, Mapping) else {}, text)


@contextmanager
def listen() -> Iterator[list[Event]]:
    """The entries that torch writes inside the block."""
    from torch._inductor import config  # slow to import, so only where something is compiled

    logger = logging.getLogger(LOGGER)
    if getattr(torch._logging._internal, "trace_log", None) is not logger:
        raise RuntimeError(f"torch {torch.__version__} writes no record to {LOGGER!r}; {proven()}")
    listener = _Listener()
    logger.addHandler(listener)
    try:
        with _never_silent(logger), config.patch({"trace.provenance_tracking_level": 1}):
            yield listener.events
    finally:
        logger.removeHandler(listener)


@contextmanager
def _never_silent(logger: logging.Logger) -> Iterator[None]:
    """`logging.disable` suppresses the record in torch 2.11. torch 2.13 prevents this, in the same way as here."""
    own = vars(logger).get("isEnabledFor")
    logger.isEnabledFor = lambda level: True
    try:
        yield
    finally:
        del logger.isEnabledFor
        if own:
            logger.isEnabledFor = own


def proven() -> str:
    return f"course_lib.torch_inside was proven with torch {PROVEN}."
