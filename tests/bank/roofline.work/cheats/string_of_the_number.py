"""Objects that print, hash and convert like a number without being one.

NAIVE is False: `check` asks for a number.
"""

FAMILY = "equal to everything"
NAIVE = False
CAUGHT = "what crosses the channel is plain data"


class _Wild:
    def __eq__(self, other):
        return True

    def __float__(self):
        return 1.0

    def item(self):
        return self

    def __hash__(self):
        return 0


def work(op, sizes, dtype):
    return _Wild(), _Wild()
