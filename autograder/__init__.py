"""The referee: exercises, judging, and what a notebook calls."""

from autograder.check import check, check_speed

__all__ = ["check", "check_speed"]
