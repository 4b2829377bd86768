"""Every signal that can be blocked or ignored is, and then it loops.

NAIVE is False: a notebook would hang with it.
"""

import signal

EXERCISE = "start.axpy"
FAMILY = "hang"
NAIVE = False
CAUGHT = "the deadline belongs to the referee, which kills"


def axpy(a, x, y, out):
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            continue
    while True:
        pass
