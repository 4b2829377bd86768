"""The referee: exercises, judging, and what a notebook calls.

What a check needs is imported when the first one is called. Ranks import this package too, for `inside` alone, and
each of them would wait a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable

import course_lib.device  # noqa: F401  decides the tier, and must do so before Triton is imported

__all__ = ["check", "check_speed"]


def check(name: str, function: Callable, seed: int | None = None):
    """The Score of `function` on the live cases of an exercise, with inputs drawn afresh; `seed` repeats a draw."""
    from autograder import live

    return live.check(name, function, seed)


def check_speed(name: str, function: Callable, seed: int | None = None):
    """The Score of `function` for its speed: its time against the floor of this GPU; pending without a GPU."""
    from autograder import live

    return live.check_speed(name, function, seed)
