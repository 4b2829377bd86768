"""The worker stops itself: it neither runs nor ends.

NAIVE is False: a notebook would hang with it.
"""

import os
import signal

EXERCISE = "start.axpy"
FAMILY = "hang"
NAIVE = False
CAUGHT = "the deadline belongs to the referee, which kills"


def axpy(a, x, y, out):
    os.kill(os.getpid(), signal.SIGSTOP)
