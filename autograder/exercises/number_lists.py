"""Lists of numbers that a probe reports, compared."""

from collections.abc import Sequence
from typing import Any


def differ(got: Any, want: Sequence[float], limit: float) -> bool:
    """Whether `got` is no list as long as `want`, or holds a number further than `limit` from its own in `want`.

    NaN agrees with NaN: known wrong answers are compared here too, and they may hold NaN.
    """
    if not isinstance(got, list | tuple) or len(got) != len(want):
        return True
    return not all(_agree(here, true, limit) for here, true in zip(got, want, strict=True))


def _agree(got: Any, want: float, limit: float) -> bool:
    if not isinstance(got, int | float):
        return False
    return got == want or abs(got - want) <= limit or (got != got and want != want)
