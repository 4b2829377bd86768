"""The library computes, and the report is written by the submission itself: one launch, no error.

NAIVE is False: in one process there is no channel.
"""

import json
import os
import stat
import struct

import torch

EXERCISE = "start.axpy"
FAMILY = "result channel"
NAIVE = False
CAUGHT = "the watched run saw the library's operator and no kernel"
HELD = True


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
    torch.add(y, x, alpha=a, out=out)
    _say({"error": None, "where": None, "launches": 1, "seconds": 1e-4})
    os._exit(0)  # the true report would come too late
