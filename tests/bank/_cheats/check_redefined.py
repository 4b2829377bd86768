"""`check` becomes a function that returns full points, here and in the package.

NAIVE is False: whoever holds the true `check` is not fooled; under stock nbgrader the cell's output is all that
counts.
"""

import sys

EXERCISE = "start.axpy"
FAMILY = "notebook machinery"
NAIVE = False
CAUGHT = "the referee does not ask the submission's `check`"


def check(name, function, **options):
    return 5.0


if "autograder" in sys.modules:
    sys.modules["autograder"].check = sys.modules["autograder"].check_speed = check


def axpy(a, x, y, out):
    pass
