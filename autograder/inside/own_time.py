"""Limits of time that are fair where other programs use the processors too.

A process that works is charged the seconds for which it had a processor. One that stands still, asleep or in a
deadlock, is charged the seconds that pass. So on an idle machine an endless loop and a deadlock end at the limit, and
on a busy one an answer is not charged what others took.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic  # as it is before any cell runs

STILL = 0.02  # share of a processor below which processes stand still; a rank that waits for others takes 0.000
LEGS, LEAST_S = 10, 0.5  # a wait is charged in so many parts, each of so many seconds: less says little of a share
OVER_S = 1e-3  # a timer may ring this much too soon


class OwnTime:
    def __init__(self, seconds: float, ran: Callable[[], float] = lambda: 0.0, most_s: float = math.inf):
        """ran: seconds for which the processes that are waited for have had a processor, all together; where nobody
        counts them, the seconds that pass are charged. most_s: to wait at most, whatever is charged."""
        self.seconds, self._ran = seconds, ran
        self._began = self._since = monotonic()
        self._had, self._charged = ran(), 0.0
        self._ends, self._until = self._began + most_s, self._began + self._leg(seconds)

    @property
    def charged(self) -> float:
        """Never more than has passed, however many processors they had."""
        took, ran = monotonic() - self._since, self._ran() - self._had
        return self._charged + (min(ran, took) if ran > STILL * took else took)

    def left(self) -> float:
        """Seconds to wait until this is asked again; 0 when all are charged."""
        now = monotonic()
        if now > min(self._until, self._ends) - OVER_S:
            self._charged, self._since, self._had = self.charged, now, self._ran()
            left = self.seconds - self._charged
            if left < OVER_S or now > self._ends - OVER_S:
                return 0.0
            self._until = now + self._leg(left)
        return min(self._until, self._ends) - now

    def _leg(self, left: float) -> float:
        return min(left, max(LEAST_S, self.seconds / LEGS))

    def __str__(self) -> str:
        more = monotonic() - self._began - self.seconds
        return f"{self.seconds:g} s" + (f", not counting {more:.0f} s without a processor" if more >= 1 else "")
