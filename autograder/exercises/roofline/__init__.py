"""Unit 01: the roofline and the three regimes."""

from autograder.exercises.roofline.work import WORK

EXERCISES = (WORK,)
