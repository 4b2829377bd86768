"""Limits of time that are fair where other programs use the processors too.

What is waited for is charged the seconds that pass, without those in which it could have run and had no processor. So
an endless loop, a deadlock and a sleep end at the limit, and an answer is not charged what others took.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic  # as it is before any cell runs

OVERDUE = "still running when its time was over"
OVER_S = 1e-3  # a timer may ring this much too soon


class OwnTime:
    def __init__(self, seconds: float, lacked: Callable[[], float] = lambda: 0.0, most_s: float = math.inf):
        """lacked: seconds so far in which what is waited for could have run and had no processor. most_s: to wait at
        most, whatever is charged."""
        self.seconds, self._lacked = seconds, lacked
        self._began, self._before = monotonic(), lacked()
        self._ends = self._began + most_s

    @property
    def lacked(self) -> float:
        return max(0.0, self._lacked() - self._before)

    @property
    def charged(self) -> float:
        return max(0.0, monotonic() - self._began - self.lacked)

    def left(self) -> float:
        """Seconds to wait until this is asked again; 0 when all are charged."""
        left = min(self.seconds - self.charged, self._ends - monotonic())
        return left if left > OVER_S else 0.0

    def __str__(self) -> str:
        more = self.lacked
        return f"{self.seconds:g} s" + (f", not counting {more:.0f} s without a processor" if more >= 1 else "")


def lacked_here(open: Callable = open) -> float:
    """Seconds in which the first thread of this process could have run and had no processor. A kernel that does not
    count them says 0: there the seconds that pass are charged."""
    try:
        with open("/proc/self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
