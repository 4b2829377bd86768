"""A report that never ends: one byte of it a tenth of a second.

NAIVE is False: in one process there is no channel.
"""

import os
import stat
import struct
import time

EXERCISE = "start.axpy"
FAMILY = "result channel"
NAIVE = False
CAUGHT = "a call has one deadline, however busy the channel"


def axpy(a, x, y, out):
    sockets = [d for d in range(3, 64) if os.path.exists(f"/proc/self/fd/{d}") and stat.S_ISSOCK(os.fstat(d).st_mode)]
    for descriptor in sockets:
        os.write(descriptor, struct.pack("!I", 1 << 20))
    while True:
        time.sleep(0.1)
        for descriptor in sockets:
            os.write(descriptor, b"[")
