"""Unit 09, the capstone: a vision tower, part by part."""

from autograder.exercises.capstone.mask import MASK

EXERCISES = (MASK,)
