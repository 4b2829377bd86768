"""Where the time of a compilation goes."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import NamedTuple

from course_lib.table import Table
from course_lib.torch_inside.events import SPAN
from course_lib.torch_inside.watching import Watched

DYNAMO = "Dynamo: bytecode to a graph"
GUARDS = "Dynamo: guards"
AOT = "AOTAutograd: forward and backward graph"
PASSES = "passes over the graphs"
INDUCTOR = "Inductor: fusing, scheduling, writing code"
COMPILER = "the compiler of that code, C++ or Triton"
ONCE = "hashing torch's own sources, once a process"

PART_OF = {  # spans of torch's record; the time of any other span counts for the span around it
    "dynamo": DYNAMO,
    "entire_frame_compile": DYNAMO,
    "build_guards": GUARDS,
    "backend_compile": AOT,
    "create_aot_dispatcher_function": AOT,
    "_recursive_pre_grad_passes": PASSES,
    "_recursive_joint_graph_passes": PASSES,
    "_recursive_post_grad_passes": PASSES,
    "inductor_compile": INDUCTOR,
    "compile_file": COMPILER,
    "async_compile.wait": COMPILER,
    "PyCodeCache.load_by_key_path": COMPILER,
    "inductor_codecache_torch_key": ONCE,
    "CacheBase.get_system.triton_key": ONCE,
}


class Part(NamedTuple):
    part: str
    seconds: float
    share: float


class _Span(NamedTuple):
    start_us: float
    end_us: float
    name: str


def phases(seen: Watched) -> Table:
    """The parts of compiling, in the order of the pipeline; they add up to the whole.

    Being watched costs time too, some per cent of a small compilation.
    """
    seen.expect(SPAN)
    seconds = split([(e.data, e.text) for e in seen.events if e.kind == SPAN])
    total = sum(seconds.values())
    order = [DYNAMO, GUARDS, AOT, PASSES, INDUCTOR, COMPILER, ONCE]
    rows = tuple(Part(part, seconds[part], seconds[part] / total) for part in order if part in seconds)
    return Table(("part", "seconds", "share"), rows, caption=f"{total:.2f} s of compiling")


def split(entries) -> dict[str, float]:
    """Seconds of every part. Every moment counts for the innermost open span that has a part."""
    spans = sorted(_spans(entries))
    moments = sorted({t for span in spans for t in (span.start_us, span.end_us)})
    found: dict[str, float] = defaultdict(float)
    active: list[_Span] = []
    waiting = iter([*spans, None])
    following = next(waiting)
    for here, there in pairwise(moments):
        while following and following.start_us <= here:
            active.append(following)
            following = next(waiting)
        active = [span for span in active if span.end_us > here]
        if active:  # the span that began last is the innermost; if two began together, the shorter one
            inner = max(active, key=lambda span: (span.start_us, -span.end_us))
            found[PART_OF[inner.name]] += (there - here) / 1e6
    return dict(found)


def _spans(entries) -> list[_Span]:
    """Pairs of begin and end of the spans that have a part; equal names close in the order of a stack."""
    opened: dict[str, list[float]] = defaultdict(list)
    spans = []
    for data, text in entries:
        event = data if "ph" in data else json.loads(text or "{}")
        name, kind = event.get("name"), event.get("ph")
        if name not in PART_OF:
            continue
        if kind == "B":
            opened[name].append(event["ts"])
        elif kind == "E" and opened[name]:
            spans.append(_Span(opened[name].pop(), event["ts"], name))
    return spans
