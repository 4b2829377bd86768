"""Questions for the referee are written without end, and the replies are never read: whoever answers them all waits
for ever.

NAIVE is False: in one process there is no channel.
"""

import json
import os
import stat
import struct

EXERCISE = "start.axpy"
FAMILY = "result channel"
NAIVE = False
CAUGHT = "a call has a deadline for both directions"


def axpy(a, x, y, out):
    data = json.dumps({"ask": 0, "call": "truth", "values": []}).encode()
    many = (struct.pack("!I", len(data)) + data) * 64
    for descriptor in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                while True:
                    os.write(descriptor, many)
        except OSError:
            continue
