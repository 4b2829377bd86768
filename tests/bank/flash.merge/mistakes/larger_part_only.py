"""The part with the larger maximum wins."""

import math

KILLED_BY = "close maxima"


def merge(a, b):
    return a if a["m"] > b["m"] else b
