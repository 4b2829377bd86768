"""Points: finite, rounded to 0.01, never above what a cell is worth."""

import math


def credit(right: int, total: int, points: float) -> float:
    """Half of the cases right is worth nothing, all of them everything, linear between.

    An answer that forgets its masks is right wherever the length happens to fit, which is about half of the time.
    """
    share = right / total if total else 0.0
    return settle(points * max(0.0, 2.0 * share - 1.0), points)


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
