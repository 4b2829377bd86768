"""Hundreds of descriptors are sent to the referee with every byte, until it has no more of its own.

NAIVE is False: in one process there is no channel.
"""

import os
import socket
import stat
import struct

EXERCISE = "start.axpy"
FAMILY = "result channel"
NAIVE = False
CAUGHT = "descriptors that a worker sends are dropped"


def axpy(a, x, y, out):
    out.zero_()
    zero = os.open("/dev/zero", os.O_RDONLY)
    for descriptor in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                end = socket.socket(fileno=os.dup(descriptor))
                end.setblocking(False)
                for _ in range(200):
                    socket.send_fds(end, [struct.pack("!I", 1)[:1]], [zero] * 200)
        except OSError:
            continue
