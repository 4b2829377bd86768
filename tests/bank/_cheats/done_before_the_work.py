"""The report is written on the channel first and says one launch; the work follows after it.

NAIVE is False: in one process there is no channel, the call is over when it returns.
"""

import json
import os
import stat
import struct
import time

import torch

EXERCISE = "start.axpy"
FAMILY = "done before the work"
NAIVE = False
CAUGHT = "outputs are copied when the answer comes"


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
    _say({"error": None, "where": None, "launches": 1, "seconds": 0.0})
    time.sleep(0.05)
    torch.add(y, x, alpha=a, out=out)
