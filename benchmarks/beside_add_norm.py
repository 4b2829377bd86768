"""Residual add and LayerNorm beside the table: narrow rows, rows off 16 bytes, and 8192 columns."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torch._functorch import config as donated_buffers

from benchmarks import add_norm, beside
from benchmarks.against import Case
from course_lib.meaning import ROOT, reached

MEASURES = (
    "benchmarks/beside_add_norm.py",  # how backward is timed, too
    *(path.relative_to(ROOT) for path in reached(Path(add_norm.__file__), ("course_lib/kernels",))),
)
WIDTHS = (64, 768, 1150, 8192)


@donated_buffers.patch(donated_buffer=False)  # a graph is kept, and its backward runs again and again
def run(widths: Sequence[int] = WIDTHS) -> list[dict]:
    return beside.rows("add_norm", _cases, widths)


def _cases(width: int) -> Iterator[Case]:
    with beside.stream_of_graphs():
        cases = [case for case, _ in add_norm.cases(width)]
    for case in cases:
        yield replace(case, method="graph")  # narrow rows take less time than the host needs to ask for them
