"""An answer with a hundred thousand names that nobody asked for, to fill the reports. It is merely returned.

NAIVE is False: it is after the reports of grading, and has no points itself in one process either.
"""

EXERCISE = "roofline.profile"
FAMILY = "bomb"
NAIVE = False
CAUGHT = "a sentence of a report has a largest length"


def profile(events, gap_us):
    return {f"{n:06d}" * 6: 0 for n in range(90000)}
