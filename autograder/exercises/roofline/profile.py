"""roofline.profile: read a recorded trace.

    profile(events, gap_us) -> {"ranges": {name: us}, "busy": share, "gaps": [[start_us, duration_us], ...],
                                "bound": "host" or "device"}

`events` is a list of dicts in no promised order. All have `category`, `name`, `start_us` and `duration_us`, and

    category "range"    thread                 a named stretch of one host thread; ranges of one thread may nest
    category "launch"   thread, correlation    the host puts work into a stream; the call returns before it is done
    category "kernel"   stream, correlation    the device runs a kernel; its `correlation` is that of its launch
    category "sync"     thread                 the host waits for the device

Rules
- A kernel belongs to the innermost range that was open *on the launching thread* when its launch started. When the
  kernel itself runs does not matter: the device is often behind the host. One launch may start several kernels (a
  graph): all of them carry its correlation.
- What was launched inside a range called "warmup", at any depth, counts nowhere: not in the ranges, not in the window.
- `ranges`: for every range name the sum of the durations of the kernels that belong to it, over all its occurrences,
  in microseconds. Kernels launched in no range come under "outside". Names without kernels may be 0 or left out.
- The window runs from the start of the first counted kernel to the end of the last one to end.
- `busy`: the share of the window, from 0 to 1, in which at least one counted kernel runs, on any stream.
- `gaps`: the stretches of the window longer than `gap_us` in which no counted kernel runs on any stream, in order.
- `bound`: "device" when `busy` is 0.9 or more, otherwise "host".
- Without any counted kernel: no ranges, busy 0, no gaps, "host".
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from autograder.exercise import Call, Case, Draw, Exercise, Mistake
from autograder.exercises.roofline.traces import SIDE, Plan, record

# ------------------------------------------------------------------------------------------------- the truth


def _of(events, category: str) -> list[dict]:
    return [e for e in events if e["category"] == category]


def _end(event) -> float:
    return event["start_us"] + event["duration_us"]


def _ranges(events, thread=None) -> list[tuple[float, float, str]]:
    """(start, end, name) of the ranges of one thread, or of all, by start: the outermost first."""
    chosen = [r for r in _of(events, "range") if thread in (None, r["thread"])]
    return sorted((r["start_us"], _end(r), r["name"]) for r in chosen)


def _open_at(ranges, time_us: float) -> list[str]:
    return [name for start, end, name in ranges if start <= time_us < end]


def _launched_in(events) -> dict[int, list[str]]:
    """Correlation -> the ranges around that launch."""
    launches = _of(events, "launch")
    ranges = {thread: _ranges(events, thread) for thread in {e["thread"] for e in launches}}
    return {e["correlation"]: _open_at(ranges[e["thread"]], e["start_us"]) for e in launches}


def _counted(v) -> list[dict]:
    around = _launched_in(v["events"])
    return [k for k in _of(v["events"], "kernel") if "warmup" not in around[k["correlation"]]]


def _merged(kernels) -> list[tuple[float, float]]:
    """The stretches of time in which at least one kernel runs."""
    stretches: list[tuple[float, float]] = []
    for kernel in sorted(kernels, key=lambda k: k["start_us"]):
        if stretches and kernel["start_us"] <= stretches[-1][1]:
            stretches[-1] = (stretches[-1][0], max(stretches[-1][1], _end(kernel)))
        else:
            stretches.append((kernel["start_us"], _end(kernel)))
    return stretches


def _between(stretches, longer_than: float) -> list[list[float]]:
    return [[a[1], b[0] - a[1]] for a, b in pairwise(stretches) if b[0] - a[1] > longer_than]


def _sums(kernels, owners) -> dict[str, float]:
    """Kernel time under each name; `owners(kernel)` gives the names it counts for."""
    sums: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        for name in owners(kernel):
            sums[name] += kernel["duration_us"]
    return dict(sums)


def _innermost(v):
    around = _launched_in(v["events"])
    return lambda kernel: (around[kernel["correlation"]] or ["outside"])[-1:]


def _window(kernels) -> tuple[float, float]:
    return min(k["start_us"] for k in kernels), max(map(_end, kernels))


def _bound(busy: float) -> str:
    return "device" if busy >= 0.9 else "host"


def _answer(v, kernels=None, owners=None, busy_us=None, window=None, **parts) -> dict:
    """The right answer, but for what is given."""
    kernels = _counted(v) if kernels is None else kernels
    if not kernels:
        return {"profile": {"ranges": {}, "busy": 0.0, "gaps": [], "bound": "host"}}
    stretches = _merged(kernels)
    busy_us = sum(b - a for a, b in stretches) if busy_us is None else busy_us
    first, last = window or _window(kernels)
    busy = busy_us / (last - first)
    right = {
        "ranges": _sums(kernels, owners or _innermost(v)),
        "busy": busy,
        "gaps": _between(stretches, v["gap_us"]),
        "bound": _bound(busy),
    }
    return {"profile": {**right, **parts}}


# -------------------------------------------------------------------------------------------- the comparison

KEYS = ("ranges", "busy", "gaps", "bound")


def _close(got, want) -> bool:
    number = isinstance(got, (int, float)) and not isinstance(got, bool)
    return number and math.isclose(got, want, rel_tol=1e-9, abs_tol=1e-6)


def accept(got, want, args) -> str | None:
    if not isinstance(got, Mapping) or set(got) != set(KEYS):
        came = f"the keys {', '.join(map(str, got)) or 'none'}" if isinstance(got, Mapping) else type(got).__name__
        return f"`profile` should return a dict with the keys {', '.join(KEYS)}; got {came}"
    judged = (_ranges_wrong, _busy_wrong, _gaps_wrong, _bound_wrong)
    return next((why for key, judge in zip(KEYS, judged, strict=True) if (why := judge(got[key], want[key]))), None)


def _ranges_wrong(got, want) -> str | None:
    if not isinstance(got, Mapping):
        return f"ranges should be a dict from name to microseconds, got {type(got).__name__}"
    for name in sorted({*got, *want}, key=str):
        if not _close(got.get(name, 0.0), want.get(name, 0.0)):
            came = f"{got[name]:.6g} us" if isinstance(got.get(name), (int, float)) else "nothing"
            return (
                f"ranges[{name!r}] is wrong: {came}. Find each kernel's launch by its correlation, and the innermost "
                "range open on that thread when the launch started"
            )
    return None


def _busy_wrong(got, want) -> str | None:
    if _close(got, want):
        return None
    if not isinstance(got, (int, float)):
        return f"busy should be a number from 0 to 1, got {type(got).__name__}"
    if got > 1:
        return f"busy is {got:.4g}, but no device is busy for more than all of the time: is it a share, counted once?"
    return (
        f"busy is too {'low' if got < want else 'high'}: {got:.4g}. It is the time in which at least one kernel runs, "
        "over the time from the start of the first counted kernel to the end of the last"
    )


def _gaps_wrong(got, want) -> str | None:
    if isinstance(got, (str, Mapping)) or not isinstance(got, Sequence):
        return f"gaps should be a list of [start_us, duration_us], got {type(got).__name__}"
    for gap in got:
        if isinstance(gap, (str, Mapping)) or not isinstance(gap, Sequence) or len(gap) != 2:
            return f"each gap should be [start_us, duration_us]; got {gap!r:.60}"
    if len(got) != len(want):
        return f"gaps has too {'few' if len(got) < len(want) else 'many'} entries: {len(got)}"
    for i, (ours, true) in enumerate(zip(got, want, strict=True)):
        if not _close(ours[0], true[0]) or not _close(ours[1], true[1]):
            return f"gaps[{i}] is wrong: a gap lasts from the end of the last running kernel to the next start"
    return None


def _bound_wrong(got, want) -> str | None:
    return None if got == want else f'bound is wrong: {got!r:.40}. It follows from `busy`: "device" from 0.9 up'


# ------------------------------------------------------------------------------------------------- the cases

BEHIND = {"kernel_us": (25, 60), "host_us": (1, 3), "waits": True}  # the device cannot keep up with the host


def _call(draw: Draw, plan: Plan) -> Call:
    events = record(draw, plan)
    kernels = len(_of(events, "kernel"))
    return Call({"events": events, "gap_us": draw.integer(24, 60) / 4}, f"{len(events)} events, {kernels} kernels")


def _overlapping(draw: Draw) -> Call:
    """Two streams that add up to more than the window, while the device is idle for a good part of it."""
    while True:
        call = _call(draw, Plan(side_stream=True, kernel_us=(15, 40), host_us=(5, 32)))
        kernels = _counted(call.args)
        window = _window(kernels)
        if _answer(call.args)["profile"]["busy"] < 0.85 and _kernel_time(kernels) > 0.95 * (window[1] - window[0]):
            return call


def _no_kernels(draw: Draw) -> Call:
    events = record(draw, Plan(warm_up=True, steps=0))
    return Call({"events": events, "gap_us": 5.0}, "every kernel is part of the warm-up")


PLANS = {
    "one stream": Plan(),
    "the device is behind": Plan(**BEHIND),
    "nested ranges": Plan(nested=True),
    "nested ranges, the device is behind": Plan(nested=True, **BEHIND),
    "a warm-up": Plan(warm_up=True),
    "two streams, the device is behind": Plan(side_stream=True, **BEHIND),
    "short kernels beside a long one": Plan(short_inside_long=True),
    "two threads": Plan(autograd_thread=True),
    "launches outside any range": Plan(outside=True),
    "one launch, many kernels": Plan(graph=True),
    "work before the first launch": Plan(lead_in_us=400),
    "events out of order": Plan(shuffled=True),
}
EVERYTHING = Plan(
    warm_up=True, nested=True, side_stream=True, short_inside_long=True, outside=True, graph=True, shuffled=True
)
CASES = (
    *(Case(name, lambda d, plan=plan: _call(d, plan)) for name, plan in PLANS.items()),
    Case("two streams", _overlapping),
    Case("everything at once", lambda d: _call(d, EVERYTHING)),
    Case("no kernel counts", _no_kernels),
)

# ---------------------------------------------------------------------------------------------- the mistakes


def _kernel_time(kernels) -> float:
    return sum(k["duration_us"] for k in kernels)


def _summed(v):
    kernels = _counted(v)
    return _answer(v, busy_us=_kernel_time(kernels))


def _mean_of_streams(v):
    kernels = _counted(v)
    return _answer(v, busy_us=_kernel_time(kernels) / max(1, len({k["stream"] for k in kernels})))


def _first_stream(v):
    kernels = [k for k in _counted(v) if k["stream"] != SIDE]
    return _answer(v, kernels=kernels)


def _by_start_time(v):
    ranges = _ranges(v["events"])
    return _answer(v, owners=lambda k: (_open_at(ranges, k["start_us"]) or ["outside"])[-1:])


def _threads_ignored(v):
    launch = {e["correlation"]: e["start_us"] for e in _of(v["events"], "launch")}
    ranges = _ranges(v["events"])
    return _answer(v, owners=lambda k: (_open_at(ranges, launch[k["correlation"]]) or ["outside"])[-1:])


def _outermost(v):
    around = _launched_in(v["events"])
    return _answer(v, owners=lambda k: (around[k["correlation"]] or ["outside"])[:1])


def _every_level(v):
    around = _launched_in(v["events"])
    return _answer(v, owners=lambda k: around[k["correlation"]] or ["outside"])


def _outside_dropped(v):
    around = _launched_in(v["events"])
    return _answer(v, owners=lambda k: around[k["correlation"]][-1:])


def _warm_up_included(v):
    return _answer(v, kernels=_of(v["events"], "kernel"))


def _warm_up_in_window(v):
    """Left out of the ranges, but not of the device's time."""
    return _answer(v, kernels=_of(v["events"], "kernel"), ranges=_answer(v)["profile"]["ranges"])


def _window_of_events(v, host_only: bool):
    """The window reaches over what the host did before the first kernel and after the last."""
    kernels, events = _counted(v), v["events"]
    if not kernels:
        return _answer(v)
    warm = max((_end(e) for e in _of(events, "range") if e["name"] == "warmup"), default=0.0)
    seen = [e for e in events if e["start_us"] >= warm]
    first = min(e["start_us"] for e in seen)
    last = _window(kernels)[1] if host_only else max(map(_end, seen))
    stretches = [(first, first), *_merged(kernels), *([] if host_only else [(last, last)])]
    return _answer(v, window=(first, last), gaps=_between(stretches, v["gap_us"]))


def _previous_end(v):
    """The gap after a kernel is taken to run to the next start, though an earlier kernel is still running."""
    ordered = sorted(_counted(v), key=lambda k: k["start_us"])
    return _answer(v, gaps=_between([(k["start_us"], _end(k)) for k in ordered], v["gap_us"]))


def _gaps_by_stream(v):
    kernels = _counted(v)
    gaps = []
    for stream in sorted({k["stream"] for k in kernels}):
        gaps += _between(_merged([k for k in kernels if k["stream"] == stream]), v["gap_us"])
    return _answer(v, gaps=sorted(gaps))


def _unsorted(v, window: str):
    """The merging loop over kernels in the order in which they came."""
    kernels = _counted(v)
    if not kernels:
        return _answer(v)
    busy, gaps, reached = kernels[0]["duration_us"], [], _end(kernels[0])
    for kernel in kernels[1:]:
        if kernel["start_us"] - reached > v["gap_us"]:
            gaps.append([reached, kernel["start_us"] - reached])
        busy += max(0.0, _end(kernel) - max(kernel["start_us"], reached))
        reached = max(reached, _end(kernel))
    ends = (kernels[0]["start_us"], reached) if window == "in order" else _window(kernels)
    return _answer(v, busy_us=busy, window=ends, gaps=gaps) if ends[0] < ends[1] else {}


def _one_kernel_a_launch(v):
    return _answer(v, kernels=list({k["correlation"]: k for k in _counted(v)}.values()))


def _host_time(v):
    """How long the ranges themselves lasted on the host."""
    warm = [(e["start_us"], _end(e)) for e in _of(v["events"], "range") if e["name"] == "warmup"]
    spans: dict[str, float] = defaultdict(float)
    for e in _of(v["events"], "range"):
        if not any(a <= e["start_us"] < b for a, b in warm):
            spans[e["name"]] += e["duration_us"]
    return _answer(v, ranges=dict(spans))


def _launch_time(v):
    took = {e["correlation"]: e["duration_us"] for e in _of(v["events"], "launch")}
    kernels = _counted(v)
    return _answer(v, ranges=_sums([{**k, "duration_us": took[k["correlation"]]} for k in kernels], _innermost(v)))


def _occurrences(v, how: str):
    """Only the last occurrence of a name, or the mean over its occurrences."""
    events, per = v["events"], defaultdict(lambda: defaultdict(float))
    launch = {e["correlation"]: e for e in _of(events, "launch")}
    names = _innermost(v)
    for kernel in _counted(v):
        at, (name,) = launch[kernel["correlation"]], names(kernel)
        around = [r for r in _of(events, "range") if r["thread"] == at["thread"] and r["name"] == name]
        starts = [r["start_us"] for r in around if r["start_us"] <= at["start_us"] < _end(r)]
        per[name][max(starts, default=0.0)] += kernel["duration_us"]
    if how == "last":
        return _answer(v, ranges={name: by[max(by)] for name, by in per.items()})
    return _answer(v, ranges={name: sum(by.values()) / len(by) for name, by in per.items()})


def _other_unit(v, factor: float):
    right = _answer(v)["profile"]
    ranges = {name: us * factor for name, us in right["ranges"].items()}
    return _answer(v, ranges=ranges, gaps=[[a * factor, b * factor] for a, b in right["gaps"]])


def _percent(v):
    right = _answer(v)["profile"]
    return {"profile": {**right, "busy": 100 * right["busy"]}}


def _idle_share(v):
    right = _answer(v)["profile"]
    return {"profile": {**right, "busy": 1 - right["busy"]}} if _counted(v) else _answer(v)


def _gap_pairs(v):
    return _answer(v, gaps=[[a, a + b] for a, b in _answer(v)["profile"]["gaps"]])


def _threshold(v, longer_than: float):
    kernels = _counted(v)
    return _answer(v, gaps=_between(_merged(kernels), longer_than))


def _bound_swapped(v):
    return _answer(v, bound={"host": "device", "device": "host"}[_answer(v)["profile"]["bound"]])


def _bound_by_sum(v):
    kernels = _counted(v)
    if not kernels:
        return _answer(v)
    first, last = _window(kernels)
    return _answer(v, bound=_bound(_kernel_time(kernels) / (last - first)))


EMPTY = ("ZeroDivisionError", "ValueError", "IndexError")  # a mean, a minimum, a first entry of nothing
EXPLAIN_WARM_UP = "Find the ranges called warmup and drop every kernel whose launch lies inside one."

MISTAKES = (
    Mistake(
        "sum_instead_of_union",
        "Kernel times were added up: where two streams overlap, the device is busy once, not twice. "
        "Sort the intervals and merge those that overlap.",
        answer=_summed,
    ),
    Mistake(
        "mean_of_streams",
        "The kernel time was divided by the number of streams. Busy means that at least one stream runs a kernel.",
        answer=_mean_of_streams,
    ),
    Mistake(
        "one_stream_only",
        "Only one stream was looked at: kernels of every stream count.",
        answer=_first_stream,
    ),
    Mistake(
        "attributed_by_start_time",
        "Kernels were given to the range that was open when they *ran*. The device is behind the host: go from the "
        "kernel to its launch by the correlation, and ask which range the launch was in.",
        answer=_by_start_time,
    ),
    Mistake(
        "threads_ignored",
        "A range covers what its own thread launches. Here a launch of one thread was given to a range of another.",
        answer=_threads_ignored,
    ),
    Mistake(
        "outermost_range",
        "Kernels were given to the outermost range around their launch: they belong to the innermost.",
        answer=_outermost,
    ),
    Mistake(
        "every_level_counted",
        "A kernel in a nested range was counted once for every range around it. It belongs to the innermost one only, "
        "so that the ranges add up to the total.",
        answer=_every_level,
    ),
    Mistake(
        "outside_dropped",
        'Kernels launched in no range are missing: they come under "outside".',
        answer=_outside_dropped,
    ),
    Mistake("warm_up_included", f"The warm-up was counted. {EXPLAIN_WARM_UP}", answer=_warm_up_included),
    Mistake(
        "warm_up_in_the_window",
        f"The warm-up is out of the ranges, but not out of the window, of busy and of the gaps. {EXPLAIN_WARM_UP}",
        answer=_warm_up_in_window,
    ),
    Mistake(
        "window_over_host_events",
        "The window covers what the host did before the first kernel or after the last one. It runs from the start "
        "of the first counted kernel to the end of the last, and so do the gaps.",
        answer=_window_of_events,
        variants=(True, False),
    ),
    Mistake(
        "gap_from_previous_kernel",
        "Gaps were measured from the end of the kernel that started before, though another one was still running. "
        "Keep the latest end seen so far.",
        answer=_previous_end,
    ),
    Mistake(
        "gaps_by_stream",
        "These are the gaps of each stream. The device idles only while no stream runs anything.",
        answer=_gaps_by_stream,
    ),
    Mistake(
        "events_taken_in_order",
        "The events were taken to come in the order of time: sort the kernels by their start.",
        answer=_unsorted,
        variants=("by extremes", "in order"),
    ),
    Mistake(
        "one_kernel_a_launch",
        "Only one kernel of each launch was kept. A graph launch starts many, all with its correlation: "
        "look up the launch of each kernel, not the kernel of each launch.",
        answer=_one_kernel_a_launch,
    ),
    Mistake(
        "host_time_of_ranges",
        "These are the durations of the ranges on the host. Launches return at once: sum the kernels instead.",
        answer=_host_time,
    ),
    Mistake(
        "launch_time_of_ranges",
        "These are the durations of the launches on the host, not of the kernels on the device.",
        answer=_launch_time,
    ),
    Mistake(
        "last_occurrence_only",
        "A later occurrence of a range replaced the earlier ones: add them up.",
        answer=lambda v: _occurrences(v, "last"),
    ),
    Mistake(
        "mean_of_occurrences",
        "This is the time per occurrence of a range: the sum over all of them is asked for.",
        answer=lambda v: _occurrences(v, "mean"),
    ),
    Mistake(
        "wrong_unit",
        "The times are not in microseconds, the unit of the trace.",
        answer=_other_unit,
        variants=(1e-3, 1e-6, 1e3),
    ),
    Mistake("percent", "busy is a share from 0 to 1, not a percentage.", answer=_percent),
    Mistake("idle_instead_of_busy", "This is the share of the time the device is idle.", answer=_idle_share),
    Mistake(
        "gap_ends_for_durations",
        "Gaps came as [start, end]: [start_us, duration_us] is asked for.",
        answer=_gap_pairs,
    ),
    Mistake(
        "threshold_ignored",
        "Short gaps are listed too: only those longer than `gap_us`, which is in microseconds like the trace.",
        answer=lambda v, times: _threshold(v, times * v["gap_us"]),
        variants=(0.0, 1e-3),
    ),
    Mistake(
        "threshold_too_large",
        "Gaps are missing: `gap_us` is in microseconds, and so is the trace.",
        answer=lambda v: _threshold(v, 1e3 * v["gap_us"]),
    ),
    Mistake(
        "bound_by_sum",
        "`bound` was decided by the sum of the kernel times: overlapping kernels make an idle device look busy. "
        "Use `busy`.",
        answer=_bound_by_sum,
    ),
    Mistake(
        "bound_swapped",
        "The two verdicts are swapped: a device that is nearly always busy is the limit itself.",
        answer=_bound_swapped,
    ),
    Mistake(
        "empty_not_handled",
        "A trace without any counted kernel has no first kernel: return no ranges, busy 0, no gaps and host.",
        sign=lambda e: (
            e.failed_only("no kernel counts") and any(map(e.raised, ("Division", "ValueError", "IndexError")))
        ),
    ),
)

PROFILE = Exercise(
    name="roofline.profile",
    entry="profile",
    points=8,
    kind="scenario",
    cases=CASES,
    oracle=_answer,
    mistakes=MISTAKES,
    returns=("profile",),
    accept=accept,
    launches=False,
)
