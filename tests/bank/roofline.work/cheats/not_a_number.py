"""NaN for both numbers, for judges that ask whether the error is above the limit.

NAIVE is False: `check` asks whether it is below.
"""

FAMILY = "equal to everything"
NAIVE = False
CAUGHT = "NaN is not within any limit"


def work(op, sizes, dtype):
    return float("nan"), float("nan")
