"""Unit 03: the dispatcher."""

from autograder.exercises.dispatch.table import TABLE

EXERCISES = (TABLE,)
