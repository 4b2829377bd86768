"""Unit 09: the capstone, a vision tower."""

from autograder.exercises.capstone.tower import TOWER

EXERCISES = (TOWER,)
