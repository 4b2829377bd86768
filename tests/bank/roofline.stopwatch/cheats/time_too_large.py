"""The time is an integer of 400 digits, so that asking whether it is finite raises.

NAIVE is False: `check` raises as well, in the notebook of whoever wrote it.
"""

FAMILY = "result channel"
NAIVE = False
CAUGHT = "numbers that no float can hold are no answer"


def stopwatch(gpu, kernel):
    return 10**400
