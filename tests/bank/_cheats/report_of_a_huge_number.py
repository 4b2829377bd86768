"""A report whose seconds are an integer of 400 digits: turning it into a float raises where the verdict is made.

NAIVE is False: in one process there is no channel.
"""

import json
import os
import stat
import struct

EXERCISE = "start.axpy"
FAMILY = "result channel"
NAIVE = False
CAUGHT = "a report out of shape is an answer out of shape"


def _say(message):
    """Write a message on every descriptor that may be the referee's."""
    data = json.dumps(message).encode()
    for descriptor in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, struct.pack("!I", len(data)) + data)
        except OSError:
            continue


def axpy(a, x, y, out):
    out.zero_()
    _say({"error": None, "where": None, "launches": 1, "seconds": 10**400})
    os._exit(0)
