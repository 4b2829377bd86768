"""ddp.cost: what an all-reduce costs, from timings of which some hold more than it.

    what_it_costs(one, in_a_row, ranks) -> {"alpha_s", "bus_bytes_per_s", "crossover_bytes", "host", "host_s"}

An all-reduce over `ranks` ranks was timed for several sizes in bytes, nine times each. On the device a call of n bytes
takes alpha + n * beta, and this is asked for:

    alpha_s          alpha, in seconds
    bus_bytes_per_s  bytes a second on each rank's link: it sends 2 (N - 1) / N of the buffer
    crossover_bytes  the size at which alpha and the transfer take equally long

`in_a_row`: bytes -> nine times of a call, each from many calls that were queued one behind the other and waited for
together; they hold what the device does and nothing else. `one`: bytes -> nine times of a single call after a barrier.
Those hold a cost of the host too, the same for every size, and in one of three ways:

    "added"           the host works first, and then the device: host + alpha + n * beta
    "hidden"          both at once, and the longer one counts: max(host, alpha + n * beta)
    "not waited for"  the clock stopped when the call had been handed over: host, whatever the device still has to do

`host` is which of the three it was, `host_s` the host's cost in seconds.

Promised: times vary by a per cent or so. The first of nine may be far too long, and so may two of the others. The
longest call takes three times as long as the host at least.

Right means alpha and host within 15 %, the bandwidth within 8 %, the crossover within 20 %.
"""

from __future__ import annotations

from statistics import median

from autograder.exercise import Call, Case, Draw, Exercise, Values
from autograder.exercises.ddp.cost_mistakes import (
    ADDED,
    HIDDEN,
    LIMITS,
    MISTAKES,
    NOT_WAITED,
    RUNS,
    answered,
    line,
    reading,
    right,
)
from autograder.exercises.telling import telling


def _times(d: Draw, seconds: float, slow_first: bool, disturbed: bool) -> list[float]:
    taken = [seconds * (1 + d.rng.gauss(0, 0.008)) for _ in range(RUNS)]
    if slow_first:
        taken[0] *= d.number(10, 1000)
    for i in d.rng.sample(range(1, RUNS), 2) if disturbed else ():
        taken[i] *= d.number(4, 30)
    return taken


def _call(
    d: Draw,
    kind: str,
    span: tuple[float, float] = (1 / 64, 256),
    ranks: tuple[int, ...] = (3, 4, 8),  # of two ranks each sends as much as the buffer holds, which hides the factor
    sizes: int | None = None,
    slow_first: bool = False,
    disturbed: bool = False,
) -> Call:
    """`span`: the smallest and the largest size, in crossovers; sizes are a factor of 2 or more apart."""
    alpha, crossover, count = 10 ** d.number(-5.3, -4), 2 ** d.number(18, 24), d.choice(ranks)
    beta = alpha / crossover
    low, high = span[0] * crossover * d.number(1, 1.3), span[1] * crossover
    many = sizes or max(3, min(8, round((high / low) ** 0.5)))
    nbytes = [round(low * (high / low) ** (i / (many - 1)) / 4) * 4 for i in range(many)]
    device = {n: alpha + n * beta for n in nbytes}
    # hidden: some sizes are shorter than the host and some longer; added: of the size of alpha, so that it matters
    longest, shortest = device[nbytes[-1]], device[nbytes[0]]
    host = d.number(0.6, 2.5) * alpha if kind == ADDED else min(longest / d.number(3, 5), shortest * d.number(3, 20))
    single = {
        ADDED: lambda n: host + device[n],
        HIDDEN: lambda n: max(host, device[n]),
        NOT_WAITED: lambda n: host,
    }[kind]
    args = {
        "one": {n: _times(d, single(n), slow_first, disturbed) for n in nbytes},
        "in_a_row": {n: _times(d, device[n], slow_first, disturbed) for n in nbytes},
        "ranks": count,
    }
    want = answered(alpha, beta, kind, host, count)
    return Call(args, f"{count} ranks, {many} sizes from {nbytes[0]} to {nbytes[-1]} bytes", {"want": want})


def _far_apart(d: Draw) -> Call:
    """Sizes so far apart that noise of the largest is more than alpha: drawn until plain least squares shows it."""
    while True:
        call = _call(d, ADDED, span=(1 / 64, 4000), sizes=5)
        device = {n: median(times) for n, times in call.args["in_a_row"].items()}
        alpha = call.secret["want"]["alpha_s"]
        if abs(line(device, relative=False)[0] - alpha) > 2 * LIMITS["alpha_s"] * alpha:
            return call


def _host_above_the_line(v: Values) -> Values:
    """By plain least squares; what is added to the calls is what the single ones take above that line."""
    single, _, alpha, beta = reading(v, relative=False)
    found = right(v, relative=False)
    above = {"host_s": median(seconds - alpha - n * beta for n, seconds in single.items())}
    return {"costs": found | (above if found["host"] == ADDED else {})}


# readings of the timings that noise may leave near enough: by plain least squares, and by the first call of each size
SHOWN = (
    lambda v: {"costs": right(v, relative=False)},
    _host_above_the_line,
    lambda v: {"costs": right(v, middle=lambda times: times[0])},
)

CASES = (
    Case("added", lambda d: _call(d, ADDED)),
    Case("hidden", lambda d: _call(d, HIDDEN)),
    Case("not waited for", lambda d: _call(d, NOT_WAITED)),
    Case("two ranks", lambda d: _call(d, ADDED, ranks=(2,))),
    Case("many ranks", lambda d: _call(d, HIDDEN, ranks=(16, 64))),
    Case("around the crossover", lambda d: _call(d, ADDED, span=(1 / 3, 8))),
    Case("only small sizes", lambda d: _call(d, ADDED, span=(1 / 64, 0.7))),
    Case("only large sizes", lambda d: _call(d, HIDDEN, span=(4, 200))),
    Case("sizes far apart", _far_apart),
    Case("three sizes", lambda d: _call(d, ADDED, span=(1 / 5, 30), sizes=3)),
    Case("slow first calls", lambda d: _call(d, HIDDEN, slow_first=True)),
    Case("disturbed timings", lambda d: _call(d, ADDED, slow_first=True, disturbed=True)),
    Case("disturbed, and not waited for", lambda d: _call(d, NOT_WAITED, slow_first=True, disturbed=True)),
)


def accept(got, want, args) -> str | None:
    if not isinstance(got, dict) or set(got) != set(want):
        return f"a dict with the keys {', '.join(want)} is asked for"
    for key, limit in LIMITS.items():
        value = got[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"{key} should be a number, got {value!r:.40}"
        if not abs(value - want[key]) <= limit * want[key]:
            return f"{key} is {value:.4g}; {want[key]:.4g} is right, within {limit:.0%}"
    return None if got["host"] == want["host"] else f"host is {got['host']!r:.40}; {want['host']!r} is right"


COST = Exercise(
    name="ddp.cost",
    entry="what_it_costs",
    points=4,
    about="the device's fixed cost and bandwidth, apart from the host's cost",
    point=("added", "hidden", "not waited for"),
    kind="scenario",
    cases=telling(CASES, lambda v: {"costs": v["want"]}, (), accept, also=SHOWN),
    oracle=lambda v: {"costs": v["want"]},
    mistakes=MISTAKES,
    returns=("costs",),
    accept=accept,
    launches=False,
)
