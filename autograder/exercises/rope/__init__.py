"""Unit 06: RoPE."""

from autograder.exercises.rope.forward import FORWARD

EXERCISES = (FORWARD,)
