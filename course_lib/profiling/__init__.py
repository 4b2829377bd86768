"""Where does the time go: torch's profiler as a small table, with named ranges, the busy share and the gaps."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from course_lib.device import DEVICE
from course_lib.profiling import trace
from course_lib.table import Table

__all__ = ["Profile", "profile", "record", "span", "summarize"]

# The profiler library writes its stages to stderr at every level below this one, and graders read stderr as failure.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

WINDOW = "speed-of-light: profiled call"
MOST = 10  # rows of a table; the others become one row
LEAST_GAP_S = 1e-6  # consecutive kernels of one stream are about this far apart


@dataclass(frozen=True)
class Profile:
    on: str  # "GPU": rows are kernels; "CPU": rows are torch operators, each second given to the innermost
    kernels: tuple[trace.Row, ...]  # name, calls, total_s, share; longest first
    ranges: tuple[trace.RangeRow, ...]  # name, calls, host_s, device_s; empty without spans
    wall_s: float  # from the call until its last work was done
    busy_s: float  # of it, the seconds in which the device ran something (CPU: inside a torch operator)
    gaps: tuple[trace.Gap, ...] = field(repr=False)  # the other seconds, in order
    trace: "trace.Trace" = field(repr=False)  # everything, for figures

    @property
    def busy_share(self) -> float:
        return self.busy_s / self.wall_s if self.wall_s else 0.0

    def _sentence(self) -> str:
        what = "the GPU was busy" if self.on == "GPU" else "inside torch operators"
        longest = max(self.gaps, key=lambda gap: gap.end_s - gap.start_s, default=None)
        text = f"{_time(self.wall_s)} in all; {what} {self.busy_share:.0%} of it"
        if longest is None:
            return text + "; no gaps"
        count = f"{len(self.gaps)} gap{'s' if len(self.gaps) > 1 else ''}"
        after = f" after {_short(longest.before)}" if longest.before else ""
        return f"{text}; {count}, the longest {_time(longest.end_s - longest.start_s)}{after}"

    def tables(self) -> list[Table]:
        """The longest kernels or operators, then the ranges where there are any."""
        kind = "kernel" if self.on == "GPU" else "operator"
        rows = [[_short(r.name), r.calls, _time(r.total_s), f"{r.share:.1%}"] for r in self.kernels[:MOST]]
        if rest := self.kernels[MOST:]:
            calls, seconds, share = (sum(column) for column in list(zip(*rest))[1:])
            rows.append([f"{len(rest)} more", calls, _time(seconds), f"{share:.1%}"])
        device = "GPU time" if self.on == "GPU" else "in operators"
        ranges = [[r.name, r.calls, _time(r.host_s), _time(r.device_s)] for r in self.ranges]
        if not ranges:
            return [Table((kind, "calls", "time", "share"), rows, note=self._sentence())]
        return [
            Table((kind, "calls", "time", "share"), rows),
            Table(("range", "calls", "host time", device), ranges, note=self._sentence()),
        ]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables()))

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self.tables())


@contextmanager
def span(name: str) -> Iterator[None]:
    """Name a part of the work: a range in torch's profiler and, on a GPU, an NVTX range for Nsight."""
    with torch.profiler.record_function(name):
        if DEVICE == "cuda":
            torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            if DEVICE == "cuda":
                torch.cuda.nvtx.range_pop()


def profile(fn: Callable[[], object], *, warmup: int = 1) -> Profile:
    """Run `fn` under torch's profiler, after `warmup` calls under it that are not counted."""
    return summarize(record(fn, warmup=warmup))


def record(fn: Callable[[], object], *, warmup: int = 1, memory: bool = False, path: str | Path | None = None):
    """The Trace of one call of `fn`; `path` also keeps the raw trace, for chrome://tracing or Perfetto."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if DEVICE == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, profile_memory=memory, acc_events=True) as profiler:
        for _ in range(warmup):
            fn()
        _wait()
        with torch.profiler.record_function(WINDOW):
            result = fn()  # kept until the window closes: what a call returns is still held by it
            _wait()
        del result
    with tempfile.TemporaryDirectory() as folder:
        target = Path(path) if path else Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(target))
        return trace.read_trace(target)


def summarize(recorded: trace.Trace) -> Profile:
    """The Profile of a trace: of the call that `record` marked, or of all of it in a trace from elsewhere."""
    window = next((r for r in recorded.ranges if r.name == WINDOW), None)
    if window is not None:
        recorded = recorded.within(window.start_s, window.end_s)
    ranges = tuple(r for r in recorded.ranges if r.name != WINDOW)
    on_gpu = bool(recorded.device)
    work = recorded.device if on_gpu else recorded.operators
    start = window.start_s if window else min((i.start_s for i in work), default=0.0)
    end = max((i.end_s for i in work), default=start)
    if window is not None and not on_gpu:
        end = window.end_s
    rows = trace.totals(work) if on_gpu else trace.self_times(work)
    spans = trace.range_times(ranges, work if on_gpu else trace.outermost(work))
    return Profile(
        on="GPU" if on_gpu else "CPU",
        kernels=tuple(rows),
        ranges=tuple(spans),
        wall_s=end - start,
        busy_s=trace.busy_s(work, start, end),
        gaps=tuple(trace.gaps(work, start, end, LEAST_GAP_S)),
        trace=recorded,
    )


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _short(name: str, most: int = 60) -> str:
    return name if len(name) <= most else name[: most - 3] + "..."
