"""Unit 09: the capstone."""

from autograder.exercises.capstone.speed import SPEED

EXERCISES = (SPEED,)
