"""The cells answer for themselves, with a trouble of eight million characters that would stand in every verdict.

NAIVE is False: in one process there is no channel to write into.
"""

import json
import os
import stat
import struct

EXERCISE = "start.axpy"
FAMILY = "result channel"
NAIVE = False
CAUGHT = "what is told of a cell has a largest length"


def _say(message):
    data = json.dumps(message).encode()
    data = struct.pack("!I", len(data)) + data
    for descriptor in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                left = data
                while left:
                    left = left[os.write(descriptor, left) :]
        except OSError:
            continue


_say({"troubles": [["x", "<" * 2600000, ""]] * 3, "defined": False, "callable": False})
