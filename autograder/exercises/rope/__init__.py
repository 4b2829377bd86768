"""Unit 06: RoPE."""

from autograder.exercises.rope.forward import FORWARD
from autograder.exercises.rope.reference import REFERENCE

EXERCISES = (REFERENCE, FORWARD)
