"""Points: finite, rounded to 0.01, never above what a cell is worth."""

import math
from collections.abc import Collection, Mapping

from autograder.exercise import Exercise

AT_MOST = 0.5  # of the points for an answer that misses what its exercise is about


def credit(exercise: Exercise, right: Mapping[str, bool], fine: Mapping[str, Collection[str]] | None = None) -> float:
    """The points for these cases: half of them right is worth nothing, all of them everything, linear between.

    Outputs that are `parts` of their exercise are credited one by one, each for its own share of the points. `fine`
    says which outputs of a wrong case are right.

    An answer that forgets its masks is right wherever the length happens to fit, which is about half of the time. One
    that misses the exercise's point is wrong in few cases, so these count for half of the points.
    """
    parts = [(worth, right_in(right, fine or {}, name)) for name, worth in exercise.parts]
    parts = parts or [(1.0, sum(right.values()))]
    earned = sum(worth * max(0.0, 2.0 * count / len(right) - 1.0) for worth, count in parts) if right else 0.0
    most = AT_MOST if missed(exercise, right) else 1.0
    return settle(exercise.points * min(most, earned), exercise.points)


def right_in(right: Mapping[str, bool], fine: Mapping[str, Collection[str]], output: str) -> int:
    """In how many cases this output is right."""
    return sum(whole or output in fine.get(name, ()) for name, whole in right.items())


def missed(exercise: Exercise, right: Mapping[str, bool]) -> list[str]:
    """The wrong ones among the cases that hold what the exercise is about. One that runs here has to be known."""
    here = {case.name for case in exercise.cases if case.runs_here}
    return [name for name in exercise.point if not right.get(name, name not in here)]


def speed_credit(share: float, full: float, none: float, points: float) -> float:
    """`share` of the floor (or of the reference's speed) to points: linear from `none` to `full`."""
    if not math.isfinite(share):
        return 0.0
    return settle(points * (share - none) / (full - none), points)


def settle(value: float, points: float) -> float:
    """A score that nbgrader accepts: a finite number in [0, points], two decimals, rounded down."""
    if not math.isfinite(value):
        return 0.0
    return math.floor(min(max(value, 0.0), points) * 100 + 1e-9) / 100
