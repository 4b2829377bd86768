"""When compiling pays: the sum that has to be made, and how people make another one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from math import ceil
from statistics import mean, median

from autograder.exercise import Mistake

SAMPLES, SETTLED = 12, 6  # calls of each shape that were timed, and of these the ones that may be slow

MINUTES = "a compilation of minutes"  # a case

Times = Mapping[str, Sequence[float]]


def steady(times: Times, middle=median, since: int = SETTLED) -> dict[str, float]:
    return {shape: middle(seconds[since:]) for shape, seconds in times.items()}


def totals(times: Times, settled: Mapping[str, float], steps: Sequence[str], first: int = SETTLED) -> Iterator[float]:
    """Seconds since the start after each call: the first calls of a shape as measured, then its steady time."""
    met: dict[str, int] = {}
    total = 0.0
    for shape in cycle(steps):
        number = met[shape] = met.get(shape, 0) + 1
        total += times[shape][number - 1] if number <= first else settled[shape]
        yield total


@dataclass(frozen=True)
class Lead:
    """Eager seconds minus compiled seconds after each call, until the times are steady, and then of one round."""

    before: list[float]
    a_round: list[float]

    @classmethod
    def of(cls, eager: Iterator[float], compiled: Iterator[float], steps: Sequence[str]) -> Lead:
        settled = SETTLED * len(steps)  # every shape has come so often
        after = [e - c for e, c in islice(zip(eager, compiled, strict=False), settled + len(steps))]
        return cls(after[:settled], after[settled:])

    @property
    def gain(self) -> float:
        """Of each later round."""
        return self.a_round[-1] - self.before[-1]

    def ahead_for_good(self) -> int | None:
        """The least number of calls from which on the lead stays; None when every round loses."""
        if self.gain <= 0:
            return None
        behind = [number for number, lead in enumerate(self.before, 1) if lead < 0]
        behind += [self._number(place, rounds - 1) for place, rounds in self._rounds_behind() if rounds]
        return max(behind, default=0) + 1

    def first_ahead(self) -> int | None:
        ahead = (number for number, lead in enumerate(self.before, 1) if lead >= 0)
        later = [self._number(place, rounds) for place, rounds in self._rounds_behind()]
        return next(ahead, None) or min(later, default=None)

    def _rounds_behind(self) -> Iterator[tuple[int, int]]:
        """The place of a call in a round, and for how many rounds the lead is negative after it."""
        for place, lead in enumerate(self.a_round):
            if lead >= 0 or self.gain > 0:
                yield place, max(0, ceil(-lead / self.gain)) if lead < 0 else 0

    def _number(self, place: int, rounds: int) -> int:
        return len(self.before) + rounds * len(self.a_round) + place + 1


def calls_until(eager: Iterator[float], compiled: Iterator[float], steps: Sequence[str]) -> int | None:
    """The least number of calls from which on `compiled` stays ahead; None when it loses more in each round."""
    return Lead.of(eager, compiled, steps).ahead_for_good()


def _from_measured(v, middle=median, first: int = SETTLED, eager_first: int = SETTLED, since: int = SETTLED):
    """The right sum. An argument that is given replaces the right choice."""
    eager, compiled, steps = v["eager"], v["compiled"], v["steps"]
    return calls_until(
        totals(eager, steady(eager, middle, since), steps, eager_first),
        totals(compiled, steady(compiled, middle, since), steps, first),
        steps,
    )


def _costs(v, shape: str) -> tuple[float, float, float]:
    """What is paid once for compiling, and the steady times."""
    compiled, settled = v["compiled"][shape], steady(v["compiled"])[shape]
    return sum(t - settled for t in compiled[:SETTLED]), steady(v["eager"])[shape], settled


def mean_of_settled(v):
    """The steady time is the mean of the settled calls, disturbed or not."""
    return _from_measured(v, middle=mean)


def _differs(rule):
    """The answer of a rule, or nothing where that answer is right."""

    def answer(v):
        said, want = rule(v), v["want"]
        return {} if said == want else {"calls": said}

    return answer


def _mean_of_all(v):
    eager, compiled = (mean(t for times in v[way].values() for t in times) for way in ("eager", "compiled"))
    if compiled >= eager:
        return None
    return 1


def _mean_of_all_as_steady(v):
    """The steady time is the mean of all calls, the slow ones among them, and the first call comes on top."""
    return _from_measured(v, middle=mean, since=0)


def _one_compilation(v):
    """Only the first shape of the program pays for being compiled."""
    first = v["steps"][0]
    compiled = {s: t if s == first else [steady(v["compiled"])[s]] * SAMPLES for s, t in v["compiled"].items()}
    return _from_measured({**v, "compiled": compiled})


def _first_call_only(v):
    """Later slow calls are taken for steady ones."""
    return _from_measured(v, first=1)


def _first_time_ahead(v):
    eager, compiled = (totals(v[way], steady(v[way]), v["steps"]) for way in ("eager", "compiled"))
    return Lead.of(eager, compiled, v["steps"]).first_ahead()


def _equal_shares(v):
    """Shapes in turn, whatever the steps say."""
    return _from_measured({**v, "steps": sorted(v["eager"])})


def _rounds(v):
    calls = _from_measured(v)
    return None if calls is None else math.ceil(calls / len(v["steps"]))


def _seconds(v):
    calls = _from_measured(v)
    return None if calls is None else next(islice(totals(v["eager"], steady(v["eager"]), v["steps"]), calls - 1, None))


def _once_over_a_call(v, way: str):
    """What all shapes pay for compiling, over the time of a call in place of what it saves."""
    once, settled = sum(_costs(v, shape)[0] for shape in v["compiled"]), steady(v[way])
    return once / mean(settled[shape] for shape in v["steps"]) if _from_measured(v) is not None else None


def _first_call_over_gain(v):
    """The whole first calls are taken for compilation, though each runs the work too, and eager pays nothing."""
    usual = {shape: e - c for shape in v["eager"] for _, e, c in [_costs(v, shape)]}
    gain = mean(usual[shape] for shape in v["steps"])
    return ceil(sum(times[0] for times in v["compiled"].values()) / gain) if gain > 0 else None


def _costs_over_mean_gain(v):
    """All that is paid once, over what a call saves on average, whenever it is paid and saved."""
    eager = {**v, "compiled": v["eager"]}
    once = sum(_costs(v, shape)[0] - _costs(eager, shape)[0] for shape in v["compiled"])
    gain = mean(e - c for _, e, c in (_costs(v, shape) for shape in v["steps"]))
    return max(1.0, once / gain) if gain > 0 else None


MISTAKES = (
    Mistake(
        "number_for_never",
        "When compiled stays slower there is no such number: return None, not a negative or a huge one.",
        sign=lambda e: (
            bool(e.failing)
            and all(t.want["calls"] is None and _no_number_of_calls(t.outcome.outputs.get("calls")) for t in e.failing)
        ),
    ),
    Mistake(
        "stopped_too_early",
        "It stopped before compiling had paid. How many calls that takes depends on the times, so no fixed number of "
        "calls is enough: go on until the lead has been positive for a whole round of steady calls.",
        sign=lambda e: e.failed_only("a long compilation", MINUTES),
    ),
    Mistake(
        "rounds_returned",
        "These are rounds of `steps`: asked for is the number of calls.",
        answer=_differs(_rounds),
    ),
    Mistake(
        "seconds_returned",
        "This is a time: asked for is the number of calls.",
        answer=_differs(_seconds),
    ),
    Mistake(
        "mean_of_disturbed",
        "A few disturbed calls pull the mean up: take the median of the settled ones.",
        sign=lambda e: e.failed_only("disturbed timings"),
    ),
    Mistake(
        "first_time_ahead",
        "The compiled program is ahead there, and falls behind again later: a new shape is compiled, or a round of "
        "`steps` loses.",
        answer=_differs(_first_time_ahead),
    ),
    Mistake(
        "one_compilation",
        "Every shape costs its own first calls when the program meets it, not only the first one.",
        answer=_differs(_one_compilation),
    ),
    Mistake(
        "order_forgotten",
        "All costs over the mean gain of a call: that holds in the long run only. A program may be ahead before its "
        "last shape comes, or gain at the end of a round alone. Go through `steps`, call by call.",
        answer=_differs(_costs_over_mean_gain),
    ),
    Mistake(
        "steps_ignored",
        "Shapes do not come equally often: go through `steps`.",
        answer=_differs(_equal_shares),
    ),
    Mistake(
        "first_call_only",
        "Not only the first call of a shape is slow: tuning and recording may take several. Add up all that is above "
        "the steady time.",
        answer=_differs(_first_call_only),
    ),
    Mistake(
        "eager_warm_up_forgotten",
        "The first calls in eager mode are slow too, and that is paid whether or not something is compiled.",
        answer=_differs(lambda v: _from_measured(v, eager_first=0)),
    ),
    Mistake(
        "run_in_the_compilation",
        "The first call compiles and also runs once: only what is above the steady time is paid for compiling.",
        answer=_differs(_first_call_over_gain),
    ),
    Mistake(
        "gain_forgotten",
        "Compiling is made up for by what each call saves, eager - compiled, not by a whole call.",
        answer=lambda v, way: _differs(lambda v: _once_over_a_call(v, way))(v),
        variants=("compiled", "eager"),
    ),
    Mistake(
        "compilation_in_the_mean",
        "The slow first calls are in the mean that was taken for the steady time: compiled looks slower than it is, as "
        "in a benchmark with the compilation in the timed region. Take the times after they have settled.",
        answer=lambda v, rule: _differs(rule)(v),
        variants=(_mean_of_all, _mean_of_all_as_steady),
    ),
)


def _no_number_of_calls(got) -> bool:
    return isinstance(got, int | float) and (got <= 0 or got > 10_000 or got != got)
