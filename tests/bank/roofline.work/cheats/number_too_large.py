"""Nothing is forged: the answer is an integer of 400 digits, and whoever subtracts a float from it or prints it as one
gets an exception.

NAIVE is False: `check` raises as well, in the notebook of whoever wrote it.
"""

FAMILY = "result channel"
NAIVE = False
CAUGHT = "numbers that no float can hold are no answer"


def work(op, sizes, dtype):
    return 10**400, -(10**400)
