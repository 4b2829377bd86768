"""Watching what torch.compile does: the record of its work, sorted into compilations.

with watch() as seen:
    compiled(x)
breaks(seen), guards(seen), kernels(seen) ...
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from course_lib.torch_inside.events import METRICS, Event, listen, proven


@dataclass(frozen=True)
class Compilation:
    """One run of the compiler over one piece of a program."""

    id: str  # "0/1": piece 0, compiled for the second time
    function: str
    file: str
    line: int  # where the piece begins
    seconds: float  # Dynamo and everything that it called
    events: tuple[Event, ...] = field(repr=False)

    @property
    def piece(self) -> str:
        """The function, or the rest of it after a graph break."""
        rest = re.fullmatch(r"torch_dynamo_resume_in_(.*)_at_(\d+)", self.function)
        return f"{rest[1]}, from line {rest[2]} on" if rest else self.function

    @property
    def again(self) -> bool:
        """Whether this piece had been compiled before, for another situation."""
        return not self.id.endswith("/0")

    def of(self, *kinds: str) -> list[Event]:
        """Entries of the last attempt, in order. torch discards the results of earlier attempts."""
        found = [event for event in self.events if event.kind in kinds]
        last = max((event.attempt for event in found), default=0)
        return [event for event in found if event.attempt == last]


@dataclass(frozen=True)
class Watched:
    """What was written while a program ran."""

    events: list[Event] = field(default_factory=list)

    @property
    def compilations(self) -> list[Compilation]:
        """In the order in which they ended."""
        ended = [e for e in self.events if e.kind == METRICS and e.compilation and e.data.get("co_name")]
        return [self._compilation(event) for event in ended]

    def _compilation(self, end: Event) -> Compilation:
        data = end.data
        return Compilation(
            id=end.compilation,
            function=data["co_name"],
            file=data.get("co_filename") or "",
            line=data.get("co_firstlineno") or 0,
            seconds=(data.get("dynamo_cumulative_compile_time_us") or 0) / 1e6,
            events=tuple(e for e in self.events if e.compilation == end.compilation),
        )

    def expect(self, kind: str) -> list[Compilation]:
        """The compilations; RuntimeError where something was compiled and no entry of this kind was written."""
        found = self.compilations
        if self.events and not found:
            raise RuntimeError(f"torch {torch.__version__} wrote no end of a compilation; {proven()}")
        if found and not any(c.of(kind) for c in found):
            raise RuntimeError(f"torch {torch.__version__} wrote no {kind!r} about these compilations; {proven()}")
        return found


@contextmanager
def watch() -> Iterator[Watched]:
    """Everything that the compiler does inside the block. What is compiled already is not compiled again."""
    with listen() as events:
        yield Watched(events)


def short(path: str) -> str:
    """A file by the name that a reader knows. The path of a notebook's cell is a number, so it becomes "cell"."""
    name = os.path.basename(path)
    return "cell" if "ipykernel" in path or name.startswith("<") else name
