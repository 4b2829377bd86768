"""Compares two means of all calls."""

KILLED_BY = "two shapes in turn"


def break_even(eager, compiled, steps):
    total_eager = sum(sum(times) for times in eager.values())
    total_compiled = sum(sum(times) for times in compiled.values())
    return 1 if total_compiled < total_eager else None
