"""The shared memory of the output is made shorter, so that the referee dies when it reads past the end.

NAIVE is False: in one process there is no channel.
"""

import os

EXERCISE = "start.axpy"
FAMILY = "result channel"
NAIVE = False
CAUGHT = "shared memory is sealed"


def axpy(a, x, y, out):
    out.zero_()
    for name in os.listdir("/proc/self/fd"):
        try:
            if "memfd" in os.readlink(f"/proc/self/fd/{name}"):
                os.ftruncate(int(name), 0)
        except OSError:
            continue
