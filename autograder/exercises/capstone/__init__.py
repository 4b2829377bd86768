"""Unit 09: a vision tower, all of it."""

from autograder.exercises.capstone.memory import MEMORY

EXERCISES = (MEMORY,)
