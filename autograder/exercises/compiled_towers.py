"""What exercises on a compiled tower compare: its results in each call, and the graphs that were made of it."""

from __future__ import annotations

from autograder.exercises.number_lists import differ
from autograder.exercises.places import counted


def results_wrong(got, want, limit: float, tower: str) -> str | None:
    """limit: of the largest number. tower: of which the true numbers are."""
    if not isinstance(got, list | tuple) or len(got) != len(want):
        return "the tower should return a tensor in every call"
    for number, (here, true) in enumerate(zip(got, want, strict=True), 1):
        if _shape(here) != _shape(true):
            return f"call {number} returned shape {_shape(here)}; (images, width) was expected"
        most = limit * largest(true)
        wrong = [image for image, rows in enumerate(zip(here, true, strict=True)) if differ(*rows, most)]
        if wrong:
            nan = any(value != value for image in wrong for value in here[image])
            what = "NaN" if nan else f"other numbers than {tower}"
            return f"call {number} of {len(want)} gives {what} for {len(wrong)} of {counted(len(true), 'image')}"
    return None


def _shape(rows) -> tuple[int, ...] | None:
    if not isinstance(rows, list) or not all(isinstance(r, list) and len(r) == len(rows[0]) for r in rows):
        return None
    return len(rows), len(rows[0]) if rows else 0


def largest(rows) -> float:
    return max((abs(value) for row in rows for value in row if abs(value) < float("inf")), default=1.0)


def graphs_wrong(got, want) -> str | None:
    """One graph of the first call that ends nowhere, of torch's own operators, and none more later."""
    if not isinstance(got, dict) or set(got) != set(want):
        return "the graphs could not be counted"
    because = f", for a graph ends because {got['ended'][0]!s:.300}" if got["ended"] else ""
    if got["first"] != want["first"]:
        return f"the first call made {counted(got['first'], 'graph')} where one was asked for{because}"
    if got["ended"]:  # around one graph there may be much that is in none
        return f"beside the graph Python runs{because}"
    if got["opaque"]:
        return f"the graph calls {got['opaque'][0]!s:.80}: no compiler can look into that"
    if got["later"] != want["later"]:
        return f"later calls were compiled again: {counted(got['later'], 'graph')} more"
    return None
