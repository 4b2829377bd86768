"""Threads without end.

NAIVE is False: without a sandbox it takes the machine with it.
"""

import threading
import time

EXERCISE = "start.axpy"
FAMILY = "bomb"
NAIVE = False
CAUGHT = "threads count as processes, and their number is limited"


def axpy(a, x, y, out):
    while True:
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
