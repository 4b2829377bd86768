"""A report nested as deep as the parser takes it, so that what walks over it afterwards runs out of stack.

NAIVE is False: in one process there is no channel.
"""

import os
import stat
import struct

FAMILY = "result channel"
NAIVE = False
CAUGHT = "a report out of shape is an answer out of shape"

DEPTH = 900


def _say(data):
    for descriptor in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, struct.pack("!I", len(data)) + data)
        except OSError:
            continue


def work(op, sizes, dtype):
    for depth in (DEPTH, 10 * DEPTH):
        inside = b'{"$":"tuple","items":[' * depth + b"1" + b"]}" * depth
        _say(b'{"error": null, "launches": 0, "seconds": 0.0, "several": false, "values": [' + inside + b"]}")
    os._exit(0)
