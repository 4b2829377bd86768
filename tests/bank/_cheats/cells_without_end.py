"""The cells never end, so there is never a function to judge.

NAIVE is False: a notebook would hang with it.
"""

EXERCISE = "start.axpy"
FAMILY = "hang"
NAIVE = False
CAUGHT = "cells have a deadline"


def axpy(a, x, y, out):
    pass


if __name__ == "__main__":
    while True:
        pass
