"""Around the table: ours against the best peer at other sizes than the table has, nothing left out.

    beside_attention    lengths, head sizes, grouped heads, padding, decoding, small batches
    beside_products     matmul and linear_gelu: few rows, a long K, sizes that no tile divides
    beside_add_norm     narrow rows, rows off 16 bytes, and 8192

A row where ours refuses the shape says so in `refused`. No row is a claim: a look of 0.1 s at every peer, and of 0.4 s
at the best.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from benchmarks.against import Case, Red, measure
from benchmarks.attention import refusal
from course_lib.device import DEVICE

__all__ = ["SECTIONS", "rows", "stream_of_graphs"]

SECTIONS = "beside_attention", "beside_products", "beside_add_norm"
LOOKS = 0.1, 0.4  # seconds


def rows(kind: str, cases: Callable[[object], Iterable[Case]], shapes: Sequence) -> list[dict]:
    """What was measured of each shape, printed as it comes."""
    found = []
    for shape in shapes:
        for row in _tried(kind, cases, shape):
            found.append(row)
            print({key: round(x, 4) if isinstance(x, float) else x for key, x in row.items()}, flush=True)
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
    return found


@contextmanager
def stream_of_graphs() -> Iterator[None]:
    """For a forward pass whose backward is timed by graphs: autograd runs that on the stream of forward. Work on the
    default stream cannot be captured. And a graph that goes from its own stream to another and back 400 times was not
    made within a minute."""
    if DEVICE != "cuda":
        yield
        return
    if torch.cuda.graph.default_capture_stream is None:
        torch.cuda.graph.default_capture_stream = torch.cuda.Stream()
    here, side = torch.cuda.current_stream(), torch.cuda.graph.default_capture_stream
    side.wait_stream(here)
    with torch.cuda.stream(side):
        yield
    here.wait_stream(side)


def _tried(kind: str, cases: Callable[[object], Iterable[Case]], shape) -> Iterator[dict]:
    """The rows of one shape; in the place of what ours does not take, the reason."""
    try:
        for case in cases(shape):
            yield {"kind": kind, **measure(case, looks=LOOKS)}
    except (AssertionError, RuntimeError, ValueError) as refused:
        if isinstance(refused, Red):
            raise
        yield {"kind": kind, "name": f"{kind} {shape}", "refused": refusal(refused)[:200]}
