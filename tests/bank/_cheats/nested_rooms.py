"""A user and mount namespace of its own gives the right to mount a file system without the sandbox's limits.

NAIVE is False: without a sandbox it takes the machine with it.
"""

import ctypes
import os

EXERCISE = "start.axpy"
FAMILY = "bomb"
NAIVE = False
CAUGHT = "no user namespace can be made inside the sandbox"

NEWUSER, NEWNS = 0x10000000, 0x00020000


def axpy(a, x, y, out):
    out.zero_()
    libc = ctypes.CDLL(None)
    if os.getuid() == 65534 and libc.unshare(NEWUSER | NEWNS) == 0:
        os.mkdir("/tmp/larger")
        if libc.mount(b"none", b"/tmp/larger", b"tmpfs", 0, b"size=2g") == 0:
            raise PermissionError("a file system of any size can be mounted")
