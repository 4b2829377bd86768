"""Plain data against plain data: the default judgement of a scenario exercise."""

import math
from collections.abc import Mapping, Sequence

REL = 1e-9  # numbers of plain data are exact up to the order of a few float64 operations


def same(got, want, args=None, at="the answer") -> str | None:
    """None when equal; otherwise one sentence that says where, never what was expected."""
    if isinstance(want, bool) or want is None or isinstance(want, str):
        return None if type(got) is type(want) and got == want else f"{at} is wrong: got {got!r:.80}"
    if isinstance(want, (int, float)):
        if isinstance(got, bool) or not isinstance(got, (int, float)):
            return f"{at} should be a number, got {type(got).__name__}"
        close = math.isclose(got, want, rel_tol=REL, abs_tol=1e-300) or (math.isnan(got) and math.isnan(want))
        return None if close else f"{at} is wrong: got {got:.6g}"
    if isinstance(want, Mapping):
        if not isinstance(got, Mapping):
            return f"{at} should be a dict, got {type(got).__name__}"
        if set(got) != set(want):
            return f"{at} should have the keys {', '.join(map(str, want))}; it has {', '.join(map(str, got)) or 'none'}"
        return next((w for key in want if (w := same(got[key], want[key], args, f"{at}[{key!r}]"))), None)
    if isinstance(want, Sequence):
        if isinstance(got, (str, Mapping)) or not isinstance(got, Sequence):
            return f"{at} should be a list, got {type(got).__name__}"
        if len(got) != len(want):
            return f"{at} has {len(got)} entries; another number was expected"
        return next((w for i, v in enumerate(want) if (w := same(got[i], v, args, f"{at}[{i}]"))), None)
    raise TypeError(f"{at}: cannot compare {type(want).__name__}")
