"""Two hundred megabytes on stdout and stderr.

NAIVE is False: without a sandbox it takes the machine with it.
"""

import os

EXERCISE = "start.axpy"
FAMILY = "bomb"
NAIVE = False
CAUGHT = "what is printed is read and dropped beyond a limit"


def axpy(a, x, y, out):
    out.zero_()
    piece = b"<p>points: 5</p>" * (1 << 16)
    for _ in range(100):
        os.write(1, piece)
        os.write(2, piece)
