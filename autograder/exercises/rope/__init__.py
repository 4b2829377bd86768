"""Unit 06: RoPE."""

from autograder.exercises.rope.backward import BACKWARD
from autograder.exercises.rope.forward import FORWARD
from autograder.exercises.rope.reference import REFERENCE
from autograder.exercises.rope.relative import RELATIVE
from autograder.exercises.rope.speed import SPEED

EXERCISES = (REFERENCE, RELATIVE, FORWARD, BACKWARD, SPEED)
