"""Memory at address zero is read.

NAIVE is False: a notebook's kernel dies with it.
"""

import ctypes

EXERCISE = "start.axpy"
FAMILY = "crash"
NAIVE = False
CAUGHT = "a worker that ends has not answered"


def axpy(a, x, y, out):
    out.zero_()
    ctypes.string_at(0)
