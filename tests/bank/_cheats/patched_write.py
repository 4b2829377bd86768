"""os.write, socket.send and their kin add points to whatever passes.

NAIVE is False: in one process nothing is sent.
"""

import os
import socket

EXERCISE = "start.axpy"
FAMILY = "patched modules"
NAIVE = False
CAUGHT = "the child's words are data, never a verdict"

_write = os.write
os.write = lambda descriptor, data: _write(descriptor, data.replace(b'"launches": 0', b'"launches": 1'))


class _Socket(socket.socket):
    def sendall(self, data, *flags):
        return super().sendall(bytes(data).replace(b'"launches": 0', b'"launches": 7'), *flags)


socket.socket = _Socket


def axpy(a, x, y, out):
    out.fill_(1.0)
