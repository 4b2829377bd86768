"""Process 1 is traced, stopped and killed by every call that could do it.

NAIVE is False: there is no such process beside a notebook.
"""

import ctypes
import os
import signal

EXERCISE = "start.axpy"
FAMILY = "zygote"
NAIVE = False
CAUGHT = "process 1 is undumpable, and takes no signals from its children"

ATTACH, SEIZE = 16, 0x4206


def axpy(a, x, y, out):
    out.zero_()
    libc = ctypes.CDLL(None)
    for request in (ATTACH, SEIZE):
        libc.ptrace(request, 1, None, None)
    for number in (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTERM, signal.SIGSEGV, signal.SIGKILL):
        for target in (1, -1):
            if target == 1 or number == signal.SIGSTOP:
                try:
                    os.kill(target, number)
                except OSError:
                    continue
