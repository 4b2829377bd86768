"""Statistics of measured times: medians, their intervals, and whether they have settled. Pure functions."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

__all__ = ["bootstrap_ratio", "drift", "half_width", "median_interval", "settled"]

CONFIDENCE = 0.95
FEWEST = 6  # with five samples even (min, max) holds the median in only 94 % of all cases


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the median from order statistics.

    No shape of the distribution is assumed: each sample is below the true median with probability one half, so
    ranks follow a binomial. With fewer than six samples this is (min, max), which covers less than 95 %.
    """
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    rank = _lower_rank(len(ordered))
    return float(ordered[rank]), float(ordered[-1 - rank])


@lru_cache(maxsize=4096)
def _lower_rank(n: int) -> int:
    """Largest r with P(Binomial(n, 1/2) <= r) <= 2.5 %, or 0; the interval is (x[r], x[n-1-r]) from zero."""
    if n > 1000:  # the normal approximation is within one rank here
        return int((n - 1) / 2 - 0.9800 * n**0.5) - 1
    limit = round((1 - CONFIDENCE) / 2 * 2**60) * 2**n >> 60  # exact integers: 2**-n underflows a float
    term, below = 1, 0
    for r in range(n):
        below += term
        if below > limit:
            return max(r - 1, 0)
        term = term * (n - r) // (r + 1)
    return 0


def half_width(samples: Sequence[float]) -> float:
    """Half the interval of the median, relative to the median; infinite below six samples."""
    if len(samples) < FEWEST:
        return float("inf")
    low, high = median_interval(samples)
    return (high - low) / 2 / float(np.median(samples))


def settled(before: Sequence[float], after: Sequence[float], tolerance: float) -> bool:
    """Do two blocks of runs agree, within `tolerance` or within what their own scatter allows?"""
    if len(before) == 0 or len(after) == 0:
        return False
    old, new = float(np.median(before)), float(np.median(after))
    scatter = max((half_width(block) for block in (before, after) if len(block) >= FEWEST), default=0.0)
    return abs(new - old) <= max(tolerance, min(scatter, 5 * tolerance)) * min(old, new)


def drift(samples: Sequence[float]) -> float:
    """Median of the second half over median of the first half, less one."""
    half = len(samples) // 2
    if half < FEWEST:
        return 0.0
    return float(np.median(samples[half:]) / np.median(samples[:half])) - 1


def bootstrap_ratio(a: np.ndarray, b: np.ndarray, seed: int = 0, resamples: int = 2000) -> tuple[float, float, float]:
    """median(a) / median(b) with its 95 % interval; a and b have one row a round, (rounds, runs).

    Whole rounds are drawn, so what moved a and b together in a round (clocks, a neighbour) cancels.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    rounds = len(a)
    draws = np.random.default_rng(seed).integers(rounds, size=(resamples, rounds))
    ratios = np.empty(resamples)
    chunk = max(1, 2_000_000 // max(1, a[0].size * rounds))  # 16 MB at a time
    for i in range(0, resamples, chunk):
        rows = draws[i : i + chunk]
        top = np.median(a[rows].reshape(len(rows), -1), axis=1)
        ratios[i : i + chunk] = top / np.median(b[rows].reshape(len(rows), -1), axis=1)
    low, high = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(np.median(a) / np.median(b)), float(low), float(high)
