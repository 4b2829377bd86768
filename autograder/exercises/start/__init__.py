"""Unit 00: start here."""

from autograder.exercises.start.axpy import AXPY

EXERCISES = (AXPY,)
