"""roofline.stopwatch: a timer for GPU kernels, written against a pretend device.

    stopwatch(gpu, kernel) -> seconds

`kernel` is a name. `gpu` is a `course_lib.simulated_gpu.SimulatedGPU`; its time is virtual and in seconds:

    gpu.launch(kernel)         queue one run; returns before it has run. The first launch of a kernel compiles it
    gpu.flush_cache()          queue a sweep that empties the cache; takes device time too
    gpu.record() -> event      queue an event, stamped by the device when everything before it is done; writing the
                               stamp takes device time of its own
    gpu.elapsed(start, end)    seconds between two events that have happened
    gpu.synchronize()          let the host wait until the device has nothing left to do
    gpu.host_time()            the host's clock
    gpu.sleep(seconds)         let the host do nothing

Asked for: the seconds that one run takes on the device with a cold cache, at the sustained clock, with nobody else on
the device and without waiting for the host. Compilation, sweeps, launches, idle time and what the two events take are
no part of it.

Promised: an event takes the same time on a device wherever it stands; after 0.15 s of work the clock has reached its
sustained speed (and falls again when the device rests for some milliseconds); of any five runs of the kernel in a row
somebody else slows down one at most; a run takes between 20 microseconds and 3 milliseconds and varies by a few per
cent; a launch keeps the host no longer than six sweeps keep the device, but it may well take longer than one sweep and
one run.
Every device is drawn afresh: no number can be learnt by heart.

Budget: 10,000 calls of `gpu` and 3 virtual seconds for one answer; after that every call raises an error.

Right means within 5 % of the truth. A careful timer (0.15 s of warm-up, 100 cold samples, sweeps queued ahead, median)
is off by 0.1 % typically and by 2.5 % at worst in 3900 runs; a naive one is off by 9.5 % or more on the device with the
difficulty that it ignores. The limit lies between; tests/autograder/test_exercise_scenarios.py measures both again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autograder.exercise import Call, Case, Draw, Exercise, Mistake
from course_lib.simulated_gpu import PITFALLS, PRESETS, DeviceModel, Traits, vary

LIMIT = 0.05
BUDGET_CALLS, BUDGET_S = 10_000, 3.0

# ------------------------------------------------------------------------------------------------- the cases

US = 1e-6
CALM = PITFALLS["asynchrony"]

EVENTS = "events that take time"

# name -> device, least and most microseconds of the kernel. Each has one difficulty.
ALONE: dict[str, tuple[Traits, float, float]] = {
    "a long kernel": (CALM, 1000, 3000),
    "a short kernel": (CALM, 25, 45),
    "compilation": (PITFALLS["compile"], 300, 600),
    "a cache that stays warm": (PITFALLS["cache"], 300, 600),
    "a clock that ramps up": (replace(PITFALLS["ramp"], ramp_s=0.11), 300, 500),
    # often enough that a hundred runs never miss them all, and ten in a row hardly ever do
    "other people's work": (replace(PITFALLS["outliers"], outlier_rate=0.165), 300, 600),
    "runs that vary": (replace(CALM, noise=0.05), 300, 600),
    "a slow host": (replace(PITFALLS["slow_host"], launch_s=135e-6, flush_s=40e-6), 20, 30),
    # a launch takes longer than an event, so that a device that waits for it shows here in every draw
    EVENTS: (replace(PITFALLS["events"], launch_s=10e-6), 20, 30),
}
# Several difficulties each. What a timer ignores costs it much less than LIMIT here or much more, in every draw: else
# an answer would earn other points with other devices. So a slow run of the laptop is not so slow that a few of them
# make up for a warm cache, and on the shared device one slow run of ten more than makes up for it.
LAPTOP = replace(
    PRESETS["laptop"],
    cache_gain=2.4,
    launch_s=4e-6,
    flush_s=80e-6,
    ramp_s=0.13,
    outlier_rate=0.1,
    outlier_factor=3.0,
    noise=0.042,
)
TOGETHER = {
    "a datacentre device": (replace(PRESETS["datacentre"], launch_s=14e-6, ramp_s=0.08, outlier_rate=0.0), 100, 150),
    "a laptop": (LAPTOP, 600, 720),
    "a shared device": (
        replace(
            PRESETS["shared"],
            cache_gain=1.25,
            idle_speed=0.7,
            ramp_s=0.11,
            outlier_rate=0.1,
            outlier_factor=13.0,
            noise=0.042,
        ),
        150,
        300,
    ),
    "everything at once": (
        replace(LAPTOP, launch_s=100e-6, flush_s=38e-6, ramp_s=0.1, compile_s=0.5),
        200,
        340,
    ),
}


def _call(draw: Draw, traits: Traits, low_us: float, high_us: float) -> Call:
    moved = vary(traits, draw.integer(0, 2**31))
    # Half as far: a mean would be right by luck where few runs are slow, a minimum where runs hardly vary, and a short
    # warm-up where the clock soon is up.
    half = {name: (getattr(traits, name) + getattr(moved, name)) / 2 for name in ("outlier_rate", "noise", "ramp_s")}
    traits = replace(moved, **half)
    kernel = draw.choice(("gemm", "softmax", "layer_norm", "attention", "rope", "dequantise"))
    kernels = {kernel: draw.number(low_us, high_us) * US}  # and none of a known time, to compare it with
    model = DeviceModel(kernels, traits, draw.integer(0, 2**31), limit_s=BUDGET_S, limit=BUDGET_CALLS)
    secret = {"truth": model.truth(kernel), "traits": traits}
    return Call({"gpu": model.handle(), "kernel": kernel}, f"kernel {kernel!r}", secret)


CASES = tuple(Case(name, lambda d, device=device: _call(d, *device)) for name, device in {**ALONE, **TOGETHER}.items())

# -------------------------------------------------------------------------------------------- the comparison


def accept(got, want, args) -> str | None:
    if isinstance(got, bool) or not isinstance(got, (int, float)):
        return f"`stopwatch` should return seconds as a number, got {type(got).__name__}"
    if not math.isfinite(got) or got <= 0:
        return f"the time came out as {got:g} s: a run takes a finite, positive time"
    ratio = got / want
    if abs(ratio - 1) <= LIMIT:
        return None
    how = f"more than {LIMIT:.0%}" if 0.67 < ratio < 1.5 else "much"
    cause = (
        "Was the device still compiling, slow, waiting for the host, or doing something else as well?"
        if ratio > 1
        else "Did the clock stop before the kernel had run, or was its data still in the cache?"
    )
    return f"{got / US:.4g} us is {how} too {'long' if ratio > 1 else 'short'}. {cause}"


# ---------------------------------------------------------------------------------------------- the mistakes


@dataclass(frozen=True)
class Reading:
    """What the timer said in one case, beside the truth."""

    got: float
    want: float
    traits: Traits
    failed: bool

    @property
    def ratio(self) -> float:
        return self.got / self.want

    @property
    def extra(self) -> float:
        return self.got - self.want


NOTHING = Reading(math.nan, 1.0, CALM, False)  # a case that did not run: every comparison with it is False


def _readings(e) -> dict[str, Reading]:
    found = dict.fromkeys([*ALONE, *TOGETHER], NOTHING)
    for t in e.tried:
        got = t.outcome.outputs.get("seconds")
        if isinstance(got, (int, float)) and not isinstance(got, bool):
            found[t.case.name] = Reading(got, t.want["seconds"], t.args["traits"], not t.right)
    return found


def _near(value: float, target: float, within: float) -> bool:
    return abs(value - target) <= within * abs(target)


def _wrong_cases(e) -> set[str]:
    """The devices with one difficulty on which the timer is wrong."""
    return {name for name, reading in _readings(e).items() if name in ALONE and reading.failed}


def _factor(e) -> float | None:
    """The one factor by which a long and a short kernel are both wrong, where there is one."""
    long, short = (_readings(e)[name] for name in ("a long kernel", "a short kernel"))
    return long.ratio if long.failed and short.failed and _near(short.ratio, long.ratio, 0.03) else None


def _wrong_unit(e) -> bool:
    return any(_near(_factor(e) or 0.0, unit, 0.05) for unit in (1e3, 1e6, 1e9, 1e-3))


def _events_swapped(e) -> bool:
    return _near(_readings(e)["a long kernel"].ratio, -1.0, 0.1)


def _numbers_subtracted(e) -> bool:
    came = [r.got for r in _readings(e).values() if r is not NOTHING]
    return bool(came) and all(got == round(got) and got != 0 for got in came)


def _not_waited_for(e) -> bool:
    return _readings(e)["a long kernel"].ratio < 0.1


def _flush_timed(e) -> bool:
    long, short = (_readings(e)[name] for name in ("a long kernel", "a short kernel"))
    return _near(short.extra, short.traits.flush_s, 0.2) and _near(long.extra, long.traits.flush_s, 0.5)


def _compiling(e) -> bool:
    wrong = _wrong_cases(e)
    return "a short kernel" not in wrong and _readings(e)["compilation"].ratio > 1 + LIMIT


def _idle_share(e) -> float | None:
    """How much too long a short kernel comes out, in host times of a launch."""
    short = _readings(e)["a short kernel"]
    return short.extra / short.traits.launch_s if short.failed and not _readings(e)["a long kernel"].failed else None


def _host_clock_each(e) -> bool:
    t = _readings(e)["a short kernel"].traits
    share = _idle_share(e)
    return share is not None and 1.15 < share < (t.launch_s + t.latency_s + 4 * t.command_s) / t.launch_s


def _idle_at_launch(e) -> bool:
    return _near(_idle_share(e) or 0.0, 1.0, 0.15)


def _warm(e) -> bool:
    return "a short kernel" not in _wrong_cases(e) and _readings(e)["a cache that stays warm"].ratio < 1 - LIMIT


def _slow_clock(e) -> bool:
    return "a short kernel" not in _wrong_cases(e) and _readings(e)["a clock that ramps up"].ratio > 1 + LIMIT


def _mean(e) -> bool:
    r = _readings(e)
    return r["other people's work"].ratio > 1 + LIMIT and not r["runs that vary"].failed


def _slowest(e) -> bool:
    r = _readings(e)
    return r["other people's work"].ratio > 2 and r["runs that vary"].ratio > 1 + LIMIT


def _fastest(e) -> bool:
    r = _readings(e)
    return r["runs that vary"].ratio < 1 - LIMIT and not r["other people's work"].failed


def _events_counted(e) -> bool:
    """Whatever else is wrong: the case with the long events is off by an event, and by nothing else."""
    r = _readings(e)[EVENTS]
    return r.failed and _near(r.extra, r.traits.event_s, 0.3)


def _gap(e) -> bool:
    return _wrong_cases(e) - {EVENTS} == {"a slow host"} and _readings(e)["a slow host"].ratio > 1 + LIMIT


MISTAKES = (
    Mistake(
        "elapsed_before_synchronize",
        "The events were read before they had happened: the device is behind the host. Call `synchronize` once, after "
        "everything is queued, then read all events.",
        sign=lambda e: e.raised("has not happened yet"),
    ),
    Mistake(
        "over_budget",
        "The budget ran out. A longer measurement does not cure a bias: 0.2 s of warm-up and about a hundred samples "
        "are enough.",
        sign=lambda e: e.raised("stopped after"),
    ),
    Mistake(
        "event_numbers_subtracted",
        "What `record` returns is the number of an event, not a time: ask `elapsed(start, end)`.",
        sign=_numbers_subtracted,
    ),
    Mistake("wrong_unit", "The answer is wrong by a power of a thousand: return seconds.", sign=_wrong_unit),
    Mistake(
        "events_swapped", "The time is negative: it is `elapsed(start, end)`, in this order.", sign=_events_swapped
    ),
    Mistake(
        "launch_not_waited_for",
        "This is how long the host takes to launch: `launch` returns before the kernel has run. Synchronize before "
        "the clock is read, or let the device take the time with events.",
        sign=_not_waited_for,
    ),
    Mistake(
        "flush_timed",
        "The answer contains the sweep of the cache. Record the start event after `flush_cache` and before `launch`.",
        sign=_flush_timed,
    ),
    Mistake(
        "wrong_count",
        "Long and short kernels are wrong by the same factor: the total was divided by another number of runs than it "
        "contains.",
        sign=lambda e: _factor(e) is not None,
    ),
    Mistake(
        "compile_in_the_sample",
        "The first launch of a kernel compiles it, and that time is in your answer. Launch once before you measure.",
        sign=_compiling,
    ),
    Mistake(
        "host_clock_around_each",
        "Short kernels come out too long by the launch and the wait: the host's clock sees both. Let the device take "
        "the time with events.",
        sign=_host_clock_each,
    ),
    Mistake(
        "device_idle_at_launch",
        "Short kernels come out too long by one launch: the device had nothing to do when the start event came, and "
        "waited for the host. Do not synchronize between the sweep and the end event.",
        sign=_idle_at_launch,
    ),
    Mistake(
        "warm_cache",
        "The kernel found its data in the cache that its own last run had filled. Call `flush_cache` before every "
        "sample.",
        sign=_warm,
    ),
    Mistake(
        "clock_not_sustained",
        "Samples were taken while the clock was still low. Warm up for 0.2 s of work, not for a number of launches, "
        "and do not let the device rest afterwards.",
        sign=_slow_clock,
    ),
    Mistake(
        "slowest_run",
        "This looks like the slowest sample: take the median.",
        sign=_slowest,
    ),
    Mistake(
        "mean_instead_of_median",
        "A few runs that somebody else slowed down pull the mean up: take the median.",
        sign=_mean,
    ),
    Mistake(
        "minimum_instead_of_median",
        "The fastest of many runs is luck, and the more runs the luckier: take the median.",
        sign=_fastest,
    ),
    Mistake(
        "gap_counted",
        "Only a slow host troubles this timer: the device passes the start event, then waits for the launch, and the "
        "wait is counted. Give the device something to do first: queue several sweeps before the start event.",
        sign=_gap,
    ),
    Mistake(
        "events_counted",
        "Short kernels come out too long by the time of an event: two events with nothing between them are that far "
        "apart already. Measure such an empty pair on the busy device, and subtract it.",
        sign=_events_counted,
    ),
)

STOPWATCH = Exercise(
    name="roofline.stopwatch",
    entry="stopwatch",
    points=10,
    about="timing the device: without compilation and without waiting for the host, from a cold cache",
    point=("a long kernel", "a short kernel", "compilation", "a cache that stays warm", "a slow host"),
    kind="scenario",
    cases=CASES,
    oracle=lambda v: {"seconds": v["truth"]},
    mistakes=MISTAKES,
    returns=("seconds",),
    accept=accept,
    launches=False,
    shows_not="whether the timer also works on a real device: try it there",
)
