"""A recursion without end, with the limit lifted, runs over the end of the stack.

NAIVE is False: a notebook's kernel dies with it.
"""

import sys

EXERCISE = "start.axpy"
FAMILY = "crash"
NAIVE = False
CAUGHT = "a worker that ends has not answered"


def _deeper(n):
    return [_deeper(n + 1) for _ in range(1)]


def axpy(a, x, y, out):
    sys.setrecursionlimit(1 << 30)
    _deeper(0)
