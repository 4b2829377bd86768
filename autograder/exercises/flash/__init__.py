"""Unit 04: FlashAttention-2."""

from autograder.exercises.flash.backward import BACKWARD
from autograder.exercises.flash.forward import FORWARD
from autograder.exercises.flash.merge import MERGE
from autograder.exercises.flash.speed import SPEED
from autograder.exercises.flash.tiled import TILED

EXERCISES = (MERGE, TILED, FORWARD, BACKWARD, SPEED)
