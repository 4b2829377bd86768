"""How people misread a trace: the known wrong answers to roofline.profile."""

from __future__ import annotations

from collections import defaultdict

from autograder.exercise import Mistake
from autograder.exercises.roofline.trace_reading import (
    SHORT_US,
    answer,
    between,
    bound_of,
    counted,
    end_of,
    innermost,
    kernel_time,
    launched_in,
    merged,
    of,
    open_at,
    ranges_of,
    sums,
    window_of,
)
from autograder.exercises.roofline.traces import SIDE


def _summed(v):
    kernels = counted(v)
    return answer(v, busy_us=kernel_time(kernels))


def _mean_of_streams(v):
    kernels = counted(v)
    return answer(v, busy_us=kernel_time(kernels) / max(1, len({k["stream"] for k in kernels})))


def _first_stream(v):
    kernels = [k for k in counted(v) if k["stream"] != SIDE]
    return answer(v, kernels=kernels)


def _by_start_time(v):
    ranges = ranges_of(v["events"])
    return answer(v, owners=lambda k: (open_at(ranges, k["start_us"]) or ["outside"])[-1:])


def _threads_ignored(v):
    launch = {e["correlation"]: e["start_us"] for e in of(v["events"], "launch")}
    ranges = ranges_of(v["events"])
    return answer(v, owners=lambda k: (open_at(ranges, launch[k["correlation"]]) or ["outside"])[-1:])


def _outermost(v):
    around = launched_in(v["events"])
    return answer(v, owners=lambda k: (around[k["correlation"]] or ["outside"])[:1])


def _every_level(v):
    around = launched_in(v["events"])
    return answer(v, owners=lambda k: around[k["correlation"]] or ["outside"])


def _outside_dropped(v):
    around = launched_in(v["events"])
    return answer(v, owners=lambda k: around[k["correlation"]][-1:])


def _warm_up_included(v):
    return answer(v, kernels=of(v["events"], "kernel"))


def _warm_up_in_window(v):
    """Left out of the ranges, but not of the device's time."""
    return answer(v, kernels=of(v["events"], "kernel"), ranges=answer(v)["profile"]["ranges"])


def _window_of_events(v, host_only: bool):
    """The window reaches over what the host did before the first kernel and after the last."""
    kernels, events = counted(v), v["events"]
    if not kernels:
        return answer(v)
    warm = max((end_of(e) for e in of(events, "range") if e["name"] == "warmup"), default=0.0)
    seen = [e for e in events if e["start_us"] >= warm]
    first = min(e["start_us"] for e in seen)
    last = window_of(kernels)[1] if host_only else max(map(end_of, seen))
    stretches = [(first, first), *merged(kernels), *([] if host_only else [(last, last)])]
    return answer(v, window=(first, last), gaps=between(stretches, v["gap_us"]))


def _previous_end(v):
    """The gap after a kernel is taken to run to the next start, though an earlier kernel is still running."""
    ordered = sorted(counted(v), key=lambda k: k["start_us"])
    return answer(v, gaps=between([(k["start_us"], end_of(k)) for k in ordered], v["gap_us"]))


def _gaps_by_stream(v):
    kernels = counted(v)
    gaps = []
    for stream in sorted({k["stream"] for k in kernels}):
        gaps += between(merged([k for k in kernels if k["stream"] == stream]), v["gap_us"])
    return answer(v, gaps=sorted(gaps))


def _unsorted(v, window: str):
    """The merging loop over kernels in the order in which they came."""
    kernels = counted(v)
    if not kernels:
        return answer(v)
    busy, gaps, reached = kernels[0]["duration_us"], [], end_of(kernels[0])
    for kernel in kernels[1:]:
        if kernel["start_us"] - reached > v["gap_us"]:
            gaps.append([reached, kernel["start_us"] - reached])
        busy += max(0.0, end_of(kernel) - max(kernel["start_us"], reached))
        reached = max(reached, end_of(kernel))
    ends = (kernels[0]["start_us"], reached) if window == "in order" else window_of(kernels)
    return answer(v, busy_us=busy, window=ends, gaps=gaps) if ends[0] < ends[1] else {}


def _one_kernel_a_launch(v):
    return answer(v, kernels=list({k["correlation"]: k for k in counted(v)}.values()))


def _host_time(v):
    """How long the ranges themselves lasted on the host."""
    warm = [(e["start_us"], end_of(e)) for e in of(v["events"], "range") if e["name"] == "warmup"]
    spans: dict[str, float] = defaultdict(float)
    for e in of(v["events"], "range"):
        if not any(a <= e["start_us"] < b for a, b in warm):
            spans[e["name"]] += e["duration_us"]
    return answer(v, ranges=dict(spans))


def _launch_time(v):
    took = {e["correlation"]: e["duration_us"] for e in of(v["events"], "launch")}
    kernels = counted(v)
    return answer(v, ranges=sums([{**k, "duration_us": took[k["correlation"]]} for k in kernels], innermost(v)))


def _occurrences(v, how: str):
    """Only the last occurrence of a name, or the mean over its occurrences."""
    events, per = v["events"], defaultdict(lambda: defaultdict(float))
    launch = {e["correlation"]: e for e in of(events, "launch")}
    names = innermost(v)
    for kernel in counted(v):
        at, (name,) = launch[kernel["correlation"]], names(kernel)
        around = [r for r in of(events, "range") if r["thread"] == at["thread"] and r["name"] == name]
        starts = [r["start_us"] for r in around if r["start_us"] <= at["start_us"] < end_of(r)]
        per[name][max(starts, default=0.0)] += kernel["duration_us"]
    if how == "last":
        return answer(v, ranges={name: by[max(by)] for name, by in per.items()})
    return answer(v, ranges={name: sum(by.values()) / len(by) for name, by in per.items()})


def _other_unit(v, factor: float):
    right = answer(v)["profile"]
    ranges = {name: us * factor for name, us in right["ranges"].items()}
    return answer(v, ranges=ranges, gaps=[[a * factor, b * factor] for a, b in right["gaps"]])


def _percent(v):
    right = answer(v)["profile"]
    return {"profile": {**right, "busy": 100 * right["busy"]}}


def _idle_share(v):
    right = answer(v)["profile"]
    return {"profile": {**right, "busy": 1 - right["busy"]}} if counted(v) else answer(v)


def _gap_pairs(v):
    return answer(v, gaps=[[a, a + b] for a, b in answer(v)["profile"]["gaps"]])


def _threshold(v, longer_than: float):
    kernels = counted(v)
    return answer(v, gaps=between(merged(kernels), longer_than))


def _bound_swapped(v):
    bound = answer(v)["profile"]["bound"]
    return answer(v, bound={"host": "device", "device": "host"}.get(bound, bound))


def _bound_by_sum(v):
    kernels = counted(v)
    if not kernels:
        return answer(v)
    first, last = window_of(kernels)
    return answer(v, bound=bound_of(v, kernels, kernel_time(kernels) / (last - first)))


def _small_kernels_called_device(v):
    bound = answer(v)["profile"]["bound"]
    return answer(v, bound="device" if bound == "small kernels" else bound)


def _small_by_number(v):
    """Small kernels are counted, and not their time."""
    right, kernels = answer(v), counted(v)
    if right["profile"]["bound"] not in ("device", "small kernels"):
        return right
    short = sum(k["duration_us"] < SHORT_US for k in kernels)
    return answer(v, bound="small kernels" if 2 * short > len(kernels) else "device")


def _waits_called_host(v):
    bound = answer(v)["profile"]["bound"]
    return answer(v, bound="host" if bound == "waits" else bound)


def _any_wait(v):
    """Waits are blamed wherever the window has one."""
    right, kernels = answer(v), counted(v)
    if right["profile"]["bound"] != "host" or not kernels:
        return right
    first, last = window_of(kernels)
    waits = [w for w in of(v["events"], "sync") if first <= w["start_us"] < last]
    return answer(v, bound="waits" if waits else "host")


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
        "Two verdicts are swapped: a device that is nearly always busy is the limit itself.",
        answer=_bound_swapped,
    ),
    Mistake(
        "small_kernels_called_device",
        "A device that is busy with starting small kernels was called the limit. Most of its kernel time lies in "
        "kernels shorter than 5 us: fewer kernels help, faster ones do not.",
        answer=_small_kernels_called_device,
    ),
    Mistake(
        "small_by_number",
        "Small kernels were counted. What matters is their share of the kernel *time*: a thousand small ones beside a "
        "long kernel may cost little.",
        answer=_small_by_number,
    ),
    Mistake(
        "waits_called_host",
        "Here the device ran dry because the host *waited* for it: most of the idle time begins inside a `sync`. The "
        "remedy is to take the wait away, so it has a verdict of its own.",
        answer=_waits_called_host,
    ),
    Mistake(
        "any_wait_blamed",
        "A wait was blamed because there is one. It is the limit only where more than half of the idle time begins "
        "during a wait.",
        answer=_any_wait,
    ),
    Mistake(
        "empty_not_handled",
        "A trace without any counted kernel has no first kernel: return no ranges, busy 0, no gaps and host.",
        sign=lambda e: (
            e.failed_only("no kernel counts") and any(map(e.raised, ("Division", "ValueError", "IndexError")))
        ),
    ),
)
