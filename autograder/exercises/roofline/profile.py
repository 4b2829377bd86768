"""roofline.profile: read a recorded trace.

    profile(events, gap_us) -> {"ranges": {name: us}, "busy": share, "gaps": [[start_us, duration_us], ...],
                                "bound": "device", "small kernels", "waits" or "host"}

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
- `bound`: what the device's time says about the program.
  `busy` 0.9 or more: "small kernels" when counted kernels shorter than 5 us have more than half of the kernel time (the
  durations of all counted kernels, added up), otherwise "device".
  `busy` below 0.9: "waits" when more than half of the idle time (all of it, whatever `gap_us` is) lies in stretches
  that began while the host was inside a `sync`, otherwise "host".
- Without any counted kernel: no ranges, busy 0, no gaps, "host".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.roofline.profile_mistakes import MISTAKES
from autograder.exercises.roofline.trace_reading import answer, counted, kernel_time, of, window_of
from autograder.exercises.roofline.traces import Plan, record
from autograder.exercises.telling import telling

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
    if got == want:
        return None
    return (
        f"bound is wrong: {got!r:.40}. It follows from busy, from the kernels' lengths and from the waits of the host"
    )


# ------------------------------------------------------------------------------------------------- the cases

BEHIND = {"kernel_us": (25, 60), "host_us": (1, 3), "waits": True}  # the device cannot keep up with the host
SMALL = {"kernel_us": (1.5, 4), "host_us": (1, 3), "kernels_a_launch": (10, 14), "steps": 2}


def _call(draw: Draw, plan: Plan) -> Call:
    events = record(draw, plan)
    kernels = len(of(events, "kernel"))
    return Call({"events": events, "gap_us": draw.integer(24, 60) / 4}, f"{len(events)} events, {kernels} kernels")


def _overlapping(draw: Draw) -> Call:
    """Two streams that add up to more than the window, while the device is idle for a good part of it."""
    while True:
        call = _call(draw, Plan(side_stream=True, kernel_us=(15, 40), host_us=(10, 40)))
        kernels = counted(call.args)
        window = window_of(kernels)
        if answer(call.args)["profile"]["busy"] < 0.85 and kernel_time(kernels) > 0.95 * (window[1] - window[0]):
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
    "small kernels back to back": Plan(**SMALL),
    "small kernels and a few long ones": Plan(**SMALL, long_kernels=True),
    "a wait in every step": Plan(kernel_us=(15, 30), host_us=(1, 3), waits=True, pause_us=150),
    "waits that cost little": Plan(waits=True),
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

# Mistakes that some draws of a case show and others do not
UNSTEADY = {
    "two streams": "gap_from_previous_kernel",
    "two streams, the device is behind": "gap_from_previous_kernel",
    "short kernels beside a long one": "bound_by_sum small_by_number any_wait_blamed",
    "everything at once": "bound_by_sum",
}

PROFILE = Exercise(
    name="roofline.profile",
    entry="profile",
    points=8,
    about="the device's time, given to the code that launched it, and what keeps the program from being faster",
    point=("the device is behind", "two streams", "small kernels back to back"),
    kind="scenario",
    cases=telling(CASES, answer, MISTAKES, accept, among=UNSTEADY),
    oracle=answer,
    mistakes=MISTAKES,
    returns=("profile",),
    accept=accept,
    launches=False,
)
