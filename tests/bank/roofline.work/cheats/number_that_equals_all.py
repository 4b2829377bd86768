"""A kind of float whose difference to anything is nothing, and which is equal to, above and below whatever it is
compared with.
"""

FAMILY = "equal to everything"
NAIVE = True
CAUGHT = "what crosses the channel is plain data"


class _Any(float):
    def __sub__(self, other):
        return 0.0

    __rsub__ = __mod__ = __sub__

    def _yes(self, other):
        return True

    __eq__ = __le__ = __ge__ = _yes
    __hash__ = float.__hash__


def work(op, sizes, dtype):
    return _Any(1.0), _Any(1.0)
