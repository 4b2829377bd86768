"""compile.break_even: after how many calls compiling has paid, from measured times.

    break_even(eager, compiled, steps) -> number of calls, or None

`eager`, `compiled`: shape -> the seconds of twelve calls with that shape, one after the other in a fresh process. The
first calls of a shape may take longer: compilation, tuning, recording a graph, and in eager mode too, loading kernels.
`steps`: the shapes that a program goes through, in this order, over and over.

Asked for: the least n such that the compiled program, after n calls and after any later number of calls, has taken no
more time in total than the eager one; None when there is none. A shape costs its first calls extra when the program
meets it for the first time, whatever it has met before.

Promised: from the seventh call on a time is steady; it varies by a per cent or so, and at most two of the last six were
disturbed and are far too long. Nothing is near a tie: over one round of `steps` compiled is faster or slower by 4 % at
least.

Right means within 12 % of the true number, or within 2 calls of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.compile.break_even_mistakes import (
    MINUTES,
    MISTAKES,
    SAMPLES,
    SETTLED,
    Times,
    calls_until,
    mean_of_settled,
    steady,
    totals,
)
from autograder.exercises.places import counted
from autograder.exercises.telling import telling

WITHIN, WITHIN_CALLS = 0.12, 2
MEAN = "The mean of the last six times gives this: two of them were disturbed, which moves a mean and no median"

# -------------------------------------------------------------------------------------------- the comparison


def accept(got, want, args) -> str | None:
    if got is not None and (isinstance(got, bool) or not isinstance(got, int | float)):
        return f"`break_even` should return a number of calls or None, got {got!r:.40}"
    wrong = _wrong(got, want)
    return f"{wrong}. {MEAN}" if wrong and _comes_of_the_mean(got, args) else wrong


def _wrong(got: float | None, want: int | None) -> str | None:
    if got is None:
        return None if want is None else "None came: this program does pay, after enough calls"
    if want is None:
        return f"{got:g} came: this program falls behind for good. Look at one whole round of its steps"
    if abs(got - want) <= max(WITHIN_CALLS, WITHIN * want):
        return None
    return f"{got:g} {'call is' if got == 1 else 'calls are'} too {'few' if got < want else 'many'}"


def _comes_of_the_mean(got: float | None, args) -> bool:
    """Whether times were disturbed, and a wrong answer is what their mean gives."""
    last = [times[SETTLED:] for way in ("eager", "compiled") for times in args[way].values()]
    if all(max(times) < 2 * median(times) for times in last):
        return False
    number = mean_of_settled(args)
    return got is number if None in (got, number) else abs(got - number) <= max(1, 0.01 * number)


# ------------------------------------------------------------------------------------------------- the cases


@dataclass(frozen=True)
class Costs:
    """Of one shape and one way to run it, in seconds."""

    steady: float
    extra: tuple[float, ...]  # of the first calls


def _samples(d: Draw, costs: Costs, disturbed: bool) -> list[float]:
    seconds = [costs.steady * (1 + d.rng.gauss(0, 0.008)) for _ in range(SAMPLES)]
    for i, extra in enumerate(costs.extra):
        seconds[i] += extra
    for i in d.rng.sample(range(SETTLED, SAMPLES), 2) if disturbed else ():
        seconds[i] *= d.number(4, 30)
    return seconds


def _call(d: Draw, shapes: dict[str, tuple[Costs, Costs]], steps: list[str], disturbed: bool = False) -> Call:
    bad = d.integer(0, 1) if disturbed else None  # one way only: in both, means might be wrong alike
    # what was measured in the first calls is what they cost; after that only the steady time is known exactly
    exact = [{s: pair[way].steady for s, pair in shapes.items()} for way in (0, 1)]
    while True:
        measured = [{s: _samples(d, pair[way], way == bad) for s, pair in shapes.items()} for way in (0, 1)]
        want = calls_until(*(totals(times, usual, steps) for times, usual in zip(measured, exact, strict=True)), steps)
        if all(_near(got, want) for got in _honest(*measured, steps)):
            break
    args = {"eager": measured[0], "compiled": measured[1], "steps": steps}
    sizes = f"{counted(len(shapes), 'shape')}, a round of {len(steps)}"
    return Call(args, sizes, {"want": want})


def _honest(eager: Times, compiled: Times, steps: list[str]) -> Iterator[int | None]:
    """What 21 readings of the timings give: each steady time with each way to take the first calls."""
    for middle, since in STEADY:
        usual = [steady(times, middle, since) for times in (eager, compiled)]
        for first in FIRST_CALLS:
            read = (
                totals({s: [first(t, of[s]) for t in times[s]] for s in times}, of, steps)
                for times, of in zip((eager, compiled), usual, strict=True)
            )
            yield calls_until(*read, steps)


def _lower_middle(times: Sequence[float]) -> float:
    return sorted(times)[2]


def _upper_middle(times: Sequence[float]) -> float:
    return sorted(times)[3]


def _mean_of_lowest(times: Sequence[float]) -> float:
    return mean(sorted(times)[:4])


def _mean_of_undisturbed(times: Sequence[float]) -> float:
    return mean(t for t in times if t < 1.5 * median(times))


# A steady time, and the call from which on it is looked for
STEADY: tuple[tuple[Callable[[Sequence[float]], float], int], ...] = (
    (median, SETTLED),
    (median, SETTLED + 1),
    (_lower_middle, SETTLED),
    (_upper_middle, SETTLED),
    (_mean_of_lowest, SETTLED),
    (_mean_of_undisturbed, SETTLED),
    (min, SETTLED),
)
# What one of the first calls costs, of its time and the steady one
FIRST_CALLS: tuple[Callable[[float, float], float], ...] = (
    lambda t, usual: t,
    lambda t, usual: max(t, usual),  # an extra is never negative
    lambda t, usual: t if t > 1.5 * usual else usual,  # only slow calls are apart
)


def _near(got: int | None, want: int | None) -> bool:
    """Whether a reading is within half of what is allowed."""
    if want is None or got is None:
        return got is want
    return abs(got - want) <= max(WITHIN_CALLS, WITHIN * want) / 2


def _time(d: Draw) -> float:
    return 10 ** d.number(-3.5, -1.5)


def _shape(d: Draw, faster=(1.3, 3.0), pays_after=(40, 400), warm=(0.0, 0.0), split: int = 1) -> tuple[Costs, Costs]:
    """`faster`: how many times; `pays_after`: calls that make up for compiling; `warm`: eager's first, in calls."""
    eager = _time(d)
    compiled = eager / d.number(*faster)
    once = abs(eager - compiled) * d.number(*pays_after)
    parts = [d.number(1, 3) for _ in range(split)]
    extra = tuple(once * part / sum(parts) for part in parts)
    return Costs(eager, (eager * d.number(*warm),)), Costs(compiled, extra)


def _one_shape(d: Draw, disturbed: bool = False, **how) -> Call:
    return _call(d, {"a": _shape(d, **how)}, ["a"], disturbed)


def _equal_turns(d: Draw, count: int) -> Call:
    shapes = {name: _shape(d, pays_after=(30, 120)) for name in "abcd"[:count]}
    eager = _time(d)  # of one size, so that each compilation matters
    shapes = {n: _scaled(pair, eager * d.number(0.8, 1.25) / pair[0].steady) for n, pair in shapes.items()}
    return _call(d, shapes, list(shapes))


def _scaled(pair: tuple[Costs, Costs], by: float) -> tuple[Costs, Costs]:
    return tuple(Costs(c.steady * by, tuple(e * by for e in c.extra)) for c in pair)


def _late_shape(d: Draw) -> Call:
    """The program is ahead when a shape comes that it has not met, and falls behind again."""
    common = _shape(d, faster=(1.5, 2.5), pays_after=(10, 20))
    gain = common[0].steady - common[1].steady
    calls = d.integer(50, 80)
    rare = Costs(common[0].steady, (0.0,)), Costs(common[1].steady, (gain * d.number(150, 300),))
    return _call(d, {"a": common, "b": rare}, ["a"] * calls + ["b"])


def _paid_in_advance(d: Draw) -> Call:
    """When the shape comes that it has not met, the program is so far ahead that it stays so."""
    common = _shape(d, faster=(1.5, 2.5), pays_after=(10, 20))
    gain = common[0].steady - common[1].steady
    calls = d.integer(70, 100)
    rare = Costs(common[0].steady, (0.0,)), Costs(common[1].steady, (gain * d.number(25, 35),))
    return _call(d, {"a": common, "b": rare}, ["a"] * calls + ["b"])


def _gains_late(d: Draw) -> Call:
    """Nearly all of the gain comes at the end of a round, so there it is that compiling has paid."""
    eager, calls, turns = _time(d), d.integer(30, 40), d.integer(8, 12)
    little, much = 0.01 * eager, eager * d.number(0.5, 0.6)
    a_round = calls * little + turns * much
    once = d.integer(1, 2) * a_round + calls * little + (d.integer(2, 3) - 0.5) * much
    shapes = {"a": (eager - little, once), "b": (eager - much, 0.0)}
    costs = {name: (Costs(eager, (0.0,)), Costs(compiled, (extra,))) for name, (compiled, extra) in shapes.items()}
    return _call(d, costs, ["a"] * calls + ["b"] * turns)


def _mostly_one(d: Draw) -> Call:
    """Compiled gains in the shape that comes often and loses in the other one."""
    often = _shape(d, faster=(1.6, 2.5), pays_after=(60, 120))
    slow = _scaled(_shape(d, faster=(0.5, 0.7), pays_after=(5, 10)), 1.0)
    slow = _scaled(slow, often[0].steady / slow[0].steady)
    return _call(d, {"a": often, "b": slow}, ["a"] * d.integer(7, 10) + ["b"])


def _loses_in_the_end(d: Draw) -> Call:
    """Ahead in the first calls, behind over a round."""
    good = _shape(d, faster=(1.3, 1.5), pays_after=(0.5, 1))
    gain = good[0].steady - good[1].steady
    calls = d.integer(3, 5)
    loss = gain * calls * d.number(1.5, 2)
    bad = Costs(good[0].steady, (0.0,)), Costs(good[0].steady + loss, (0.0,))
    return _call(d, {"a": good, "b": bad}, ["a"] * calls + ["b"])


CASES = (
    Case("one shape", _one_shape),
    Case("a long compilation", lambda d: _one_shape(d, pays_after=(800, 3000))),
    # 15 s of it and a gain of 0.1 ms a call: who walks through 100,000 calls at most does not see the end
    Case(MINUTES, lambda d: _one_shape(d, pays_after=(120_000, 180_000))),
    Case("a short compilation", lambda d: _one_shape(d, faster=(1.1, 1.2), pays_after=(12, 25))),
    Case(
        "a slow first call in eager mode too",
        lambda d: _one_shape(d, faster=(1.2, 1.4), pays_after=(60, 90), warm=(6, 9)),
    ),
    Case("ahead at once", lambda d: _one_shape(d, pays_after=(2, 5), warm=(15, 30))),
    Case("slower when compiled", lambda d: _one_shape(d, faster=(0.6, 0.9), pays_after=(20, 60))),
    Case("several slow calls", lambda d: _one_shape(d, split=3)),
    Case("disturbed timings", lambda d: _one_shape(d, disturbed=True)),
    Case("two shapes in turn", lambda d: _equal_turns(d, 2)),
    Case("four shapes in turn", lambda d: _equal_turns(d, 4)),
    Case("a late shape", _late_shape),
    Case("a late shape, paid for in advance", _paid_in_advance),
    Case("the gain comes late", _gains_late),
    Case("slower in a rare shape", _mostly_one),
    Case("loses in the end", _loses_in_the_end),
)

# Mistakes that some draws of a case show and others do not
UNSTEADY = {
    "one shape": "gain_forgotten",
    "a long compilation": "gain_forgotten",
    MINUTES: "gain_forgotten",
    "ahead at once": "gain_forgotten eager_warm_up_forgotten run_in_the_compilation",
    "several slow calls": "gain_forgotten",
    "disturbed timings": "gain_forgotten",
    "two shapes in turn": "gain_forgotten one_compilation",
    "four shapes in turn": "gain_forgotten",
    "a late shape": "gain_forgotten",
    "slower in a rare shape": "gain_forgotten one_compilation",
    "the gain comes late": "run_in_the_compilation eager_warm_up_forgotten first_call_only",
}

BREAK_EVEN = Exercise(
    name="compile.break_even",
    entry="break_even",
    points=4,
    about="the number of calls after which compiling has paid for good",
    point=("four shapes in turn", "a late shape", "a late shape, paid for in advance"),
    kind="scenario",
    cases=telling(CASES, lambda v: {"calls": v["want"]}, MISTAKES, accept, among=UNSTEADY),
    oracle=lambda v: {"calls": v["want"]},
    mistakes=MISTAKES,
    returns=("calls",),
    accept=accept,
    launches=False,
)
