"""From the naive tower to ours in steps, read from the recorded rows of `python -m benchmarks tower`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = ["Step", "steps"]

PASSES = ("forward", "backward")
ROW = re.compile(r"tower \d+ x .*?: (.*)")  # "tower 256 x 256 x 1152, 4 layers: strong, cudnn, eager"


class Step(NamedTuple):
    name: str
    seconds: dict[str, float]  # "forward" and "backward"
    peak_mib: float


def steps(rows: Iterable[Mapping]) -> list[Step]:
    """The naive tower as it is written; then of naive, of strong and of each setting of ours the better way of running
    it, chosen for each pass by itself. Settings of ours stand by the memory they take, the largest first. A kind that
    was not measured is left out.
    """
    seen = [
        Step(found[1], {"forward": row["value"] * 1e-6, "backward": row["backward us"] * 1e-6}, row["peak MiB"])
        for row in rows
        if (found := ROW.fullmatch(row["name"]))
    ]
    kinds = dict.fromkeys(_kind(one.name) for one in seen)
    ours = [_better(kind, seen) for kind in kinds if kind.startswith("ours")]
    first = [one for one in seen if one.name == "naive, eager"]
    torchs = [_better(kind, seen) for kind in ("naive", "strong") if kind in kinds]
    return [*first, *torchs, *sorted(ours, key=lambda one: -one.peak_mib)]


def _kind(name: str) -> str:
    """ "naive", "strong", or ours with its setting: "ours, input kept, norms again"."""
    kind = name.rpartition(", ")[0]
    return "strong" if kind.startswith("strong") else kind


def _better(kind: str, seen: list[Step]) -> Step:
    ways = [one for one in seen if _kind(one.name) == kind]
    seconds = {each: min(one.seconds[each] for one in ways) for each in PASSES}
    name = kind if kind.startswith("ours") else f"{kind}, better of each direction"
    return Step(name, seconds, min(one.peak_mib for one in ways))
