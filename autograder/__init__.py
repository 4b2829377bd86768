"""The referee: exercises, judging, and what a notebook calls."""

import course_lib.device  # noqa: F401, I001  decides the tier, and must do so before Triton is imported

from autograder.check import check, check_speed

__all__ = ["check", "check_speed"]
