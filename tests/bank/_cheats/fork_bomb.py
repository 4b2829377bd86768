"""Every process makes two.

NAIVE is False: without a sandbox it takes the machine with it.
"""

import os

EXERCISE = "start.axpy"
FAMILY = "bomb"
NAIVE = False
CAUGHT = "the number of processes is limited, and all are ended"


def axpy(a, x, y, out):
    while True:
        try:
            os.fork()
        except OSError:
            continue
