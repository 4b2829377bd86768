"""Process 1 is given one second of processor time, which it has used up already: the kernel ends it.

NAIVE is False: there is no such process beside a notebook.
"""

import resource

EXERCISE = "start.axpy"
FAMILY = "zygote"
NAIVE = False
CAUGHT = "a lost room costs its exercise, and the next one gets a new room"


def axpy(a, x, y, out):
    out.zero_()
    resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))
