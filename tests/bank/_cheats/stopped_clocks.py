"""Every clock of this process stands still and every alarm is void, so that no time limit is ever reached; then it
takes all the time it wants.

NAIVE is False: `check` has no time limit, so the notebook hangs with it.
"""

import signal
import time

EXERCISE = "start.axpy"
FAMILY = "patched timers"
NAIVE = False
CAUGHT = "the time limit belongs to the referee"

for _name in ("perf_counter", "monotonic", "time", "process_time", "perf_counter_ns", "monotonic_ns"):
    setattr(time, _name, lambda _now=getattr(time, _name)(): _now)
signal.alarm(0)
signal.signal(signal.SIGALRM, signal.SIG_IGN)


def axpy(a, x, y, out):
    while True:
        out.fill_(0.0)
